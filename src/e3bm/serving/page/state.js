// What every part of the page knows: the workspace as the server last told it, and the limits of requests.

export const now = { workspace: null, fitting: false };

export function classNamed(name) {
  return now.workspace.classes.find((one) => one.name === name);
}

// What the classes that were there before are called now, by their former names.
export function newNames(before) {
  const names = new Map(now.workspace.classes.map((one) => [one.id, one.name]));
  return new Map(before.map(({ id, name }) => [name, names.get(id) ?? name]));
}

// "photo 3 of crow", its number and its class, for every photo.
export function photoWords() {
  const words = new Map();
  for (const one of now.workspace.classes) {
    one.photos.forEach((photo, place) => words.set(photo, { words: `photo ${place + 1} of ${one.name}`, number: place + 1, owner: one }));
  }
  return words;
}

// Files in portions that the server takes: at most so many at once, and so many bytes.
export function portions(items, most, fileOf = (item) => item) {
  const { images, upload_bytes: bytes } = now.workspace.limits;
  const room = 0.9 * bytes; // a form is a little more than its files
  const found = [];
  let size = Infinity;
  for (const item of items) {
    const next = fileOf(item).size;
    if (size + next > room || found.at(-1).length >= Math.min(most, images)) {
      found.push([]);
      size = 0;
    }
    found.at(-1).push(item);
    size += next;
  }
  return found;
}
