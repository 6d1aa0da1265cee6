// Places where photos and folders are dropped or chosen.

import { element, listed } from "./elements.js";
import { now } from "./state.js";

const PHOTO = /\.(jpe?g|jfif|png|webp|gif|bmp|tiff?|heic|heif|hif|avif|jp2|ppm|tga|mpo)$/i;
// Naming the types makes phones that store other formats convert to one of these.
const TYPES = "image/jpeg,image/png,image/webp,image/gif,image/bmp,image/tiff,image/avif,image/heic,image/heif,.heic,.heif";
const MOVED = "application/x-e3bm-photo";
const paths = new WeakMap(); // where a file was in the folder that was dropped
const nothing = new WeakMap(); // why what was found in a dropped folder is no file that can be read

export function pathOf(file) {
  return paths.get(file) || file.webkitRelativePath || file.name;
}

// Photos of folders, and sentences about what else was in them; files that were given one by one are all taken.
export function sortedOut(files) {
  const photos = [], unused = new Map();
  const fromFolder = files.some((file) => pathOf(file).includes("/"));
  const byPath = (one, other) => pathOf(one).localeCompare(pathOf(other), undefined, { numeric: true });
  for (const file of fromFolder ? [...files].sort(byPath) : files) {
    const path = pathOf(file), reason = nothing.get(file) ?? (path.includes("/") ? whyNoPhoto(path) : null);
    if (!reason) photos.push(file);
    else unused.set(reason, [...(unused.get(reason) ?? []), path]);
  }
  return { photos, problems: [...unused].map(([reason, some]) => `Not used (${reason}): ${listed(some)}.`) };
}

// The words of `e3bm fit` for the same files; null for a photo.
function whyNoPhoto(path) {
  const parts = path.split("/");
  if (parts.includes("__MACOSX")) return "left there by an operating system";
  if (parts.some((part) => part.startsWith("."))) return "hidden";
  if (PHOTO.test(path)) return null;
  const suffix = /\.[^.]+$/.exec(parts.at(-1));
  return suffix ? `unknown format ${suffix[0].toLowerCase()}` : "no file extension";
}

// The photos of each class, and those that are in no class folder, by the rule of `e3bm fit`: in every folder that was
// dropped, the classes are the folders at the outermost place where there are several, with all that is below them.
export function byClassFolder(files) {
  const roots = new Map(), classes = new Map(), loose = [];
  for (const file of files) {
    const folders = pathOf(file).split("/").slice(0, -1);
    if (folders.length) added(roots, folders[0], { file, folders });
    else loose.push(file);
  }
  for (let held of roots.values()) {
    let depth = sharedDepth(held);
    for (let beside; (beside = held.filter((one) => one.folders.length === depth)).length && beside.length < held.length;) {
      loose.push(...beside.map((one) => one.file));
      held = held.filter((one) => one.folders.length > depth);
      depth = sharedDepth(held);
    }
    for (const { file, folders } of held) added(classes, folders[Math.min(depth, folders.length - 1)], file);
  }
  return { classes, loose };
}

// How many folders, from the outermost on, all photos are in.
function sharedDepth(held) {
  const [{ folders: first }] = held;
  const apart = held.map(({ folders }) => first.findIndex((name, place) => folders[place] !== name)).filter((place) => place >= 0);
  return Math.min(first.length, ...apart);
}

function added(found, name, one) {
  found.set(name, [...(found.get(name) ?? []), one]);
}

// A sentence about a file that this browser cannot read or the server would not take; null for other files.
export async function unreadable(file) {
  const most = now.workspace?.limits.upload_bytes ?? Infinity;
  if (file.size > most) return `${file.name} cannot be used: it has more than the ${most.toLocaleString("en")} bytes that a photo may have.`;
  try {
    await file.slice(0, 1).arrayBuffer();
    return null;
  } catch {
    return `${file.name} cannot be used: it is a folder, or a file that this browser may not read.`;
  }
}

// A place that takes photos: dropped, chosen from files, or from a phone's camera. `take` gets a list of files.
export function dropPlace({ label, words, kind = "", folder = false, whole = null, take, takeMoved = null }) {
  const waiting = element("span", { class: "waiting", hidden: true });
  const choosers = folder
    ? [chooser("choose a folder", label, { webkitdirectory: true }, take, "folder")]
    : [
      chooser("choose photos", label, { multiple: true, accept: TYPES }, take),
      chooser("use the camera", `${label} with the camera`, { capture: "environment", accept: TYPES }, take, "camera"),
    ];
  const place = element(
    "div", { class: `drop ${kind}` }, element("span", { class: "dragging-hint" }, words), ...choosers, waiting,
  );
  listen(whole ?? place, place, take, takeMoved);
  const showWaiting = (sentence) => {
    waiting.hidden = !sentence;
    waiting.textContent = sentence;
  };
  return { place, showWaiting };
}

// Makes a picture on the page one that can be dragged to another class.
export function draggablePhoto(item, photo, from) {
  item.draggable = true;
  item.addEventListener("dragstart", (event) => {
    event.dataTransfer.setData(MOVED, JSON.stringify({ photo, from }));
    event.dataTransfer.effectAllowed = "move";
  });
}

function listen(whole, place, take, takeMoved) {
  const wanted = (event) => takeMoved || !event.dataTransfer.types.includes(MOVED);
  whole.addEventListener("dragover", (event) => {
    if (!wanted(event)) return;
    event.preventDefault();
    event.stopPropagation();
    place.classList.add("over");
  });
  whole.addEventListener("dragleave", (event) => {
    if (!whole.contains(event.relatedTarget)) place.classList.remove("over");
  });
  whole.addEventListener("drop", async (event) => {
    event.preventDefault();
    event.stopPropagation();
    place.classList.remove("over");
    const moved = event.dataTransfer.getData(MOVED);
    if (moved) {
      if (takeMoved) await takeMoved(JSON.parse(moved));
      return;
    }
    const files = await filesOf(event.dataTransfer);
    if (files.length) await take(files);
  });
}

// All files of a drop, those inside of folders too. The entries have to be asked for before anything is waited for.
async function filesOf(dropped) {
  const held = [...dropped.items].filter((item) => item.kind === "file").map((item) => {
    const entry = item.webkitGetAsEntry?.();
    return entry?.isDirectory ? entry : item.getAsFile();
  });
  const found = await Promise.all(held.map((one) => (one instanceof File ? [one] : filesBelow(one))));
  return found.flat();
}

async function filesBelow(entry) {
  if (entry.isFile) {
    const file = await new Promise((resolve) => entry.file(resolve, () => resolve(null)));
    return [file ? placed(file, entry) : standIn(entry, "this browser cannot read it")];
  }
  const reader = entry.createReader(), found = [];
  for (;;) { // a reader gives a hundred at a time
    const some = await new Promise((resolve) => reader.readEntries(resolve, () => resolve([])));
    if (!some.length) break;
    found.push(...some);
  }
  if (!found.length) return [standIn(entry, "an empty folder")];
  return (await Promise.all(found.map(filesBelow))).flat();
}

function placed(file, entry) {
  paths.set(file, entry.fullPath.replace(/^\//, ""));
  return file;
}

// What is no file has none, but is to be named.
function standIn(entry, reason) {
  const made = placed(new File([], entry.name), entry);
  nothing.set(made, reason);
  return made;
}

function chooser(words, label, options, take, kind = "") {
  const input = element("input", { type: "file", "aria-label": label, ...options });
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = ""; // so that the same file can be chosen again
    if (files.length) take(files);
  });
  return element("label", { class: `choose ${kind}` }, input, words);
}
