// Small pictures of photos: made in this tab, or kept by the server; and one photo enlarged.

import { breakable, byId, element } from "./elements.js";

const SIDE = 128;
const seen = new Map(); // what this tab has of a photo, by its number: { url, file }
let drawn = new Set(); // photos that the server has a small picture of

export async function thumbnail(file) {
  try {
    const image = await createImageBitmap(file);
    const side = Math.min(image.width, image.height);
    const canvas = element("canvas", { width: SIDE, height: SIDE });
    const pen = canvas.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.drawImage(image, (image.width - side) / 2, (image.height - side) / 2, side, side, 0, 0, SIDE, SIDE);
    image.close();
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
    return URL.createObjectURL(blob);
  } catch {
    return null; // a format that this browser does not show; the server may still read it
  }
}

export function remember(photo, url, file) {
  seen.set(photo, { url, file });
}

// Drops the pictures of photos that the server no longer has; notes of which it has one.
export function keepOnly(classes) {
  drawn = new Set(classes.flatMap((one) => one.pictures));
  const kept = new Set(classes.flatMap((one) => one.photos));
  for (const [photo, { url }] of seen) {
    if (!kept.has(photo)) {
      if (url) URL.revokeObjectURL(url);
      seen.delete(photo);
    }
  }
}

export function fileNameOf(photo) {
  return seen.get(photo)?.file.name ?? "";
}

export function picture(url, description, placeholder) {
  const box = element("span", { class: "picture", role: "img", "aria-label": description }, placeholder);
  if (!url) return box;
  const image = element("img", { class: "picture", alt: description, loading: "lazy", draggable: false, src: url });
  image.addEventListener("error", () => image.replaceWith(box), { once: true });
  return image;
}

// The picture of a labelled photo; where there is none, the name of its file if this tab knows it, else its number.
export function pictureOf(photo, description, number) {
  return picture(seen.get(photo)?.url ?? addressOf(photo), description, fileNameOf(photo) || String(number));
}

// What stands in place of the picture of a file that nobody can draw.
export function kindOf(file) {
  const kind = file.name.split(".").at(-1).toUpperCase();
  return kind.length < 6 ? kind : "?";
}

// The address of a small picture that came with an answer.
export function pictureUrl(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return URL.createObjectURL(new Blob([bytes], { type: "image/jpeg" }));
}

function addressOf(photo) {
  return drawn.has(photo) ? `photos/${photo}/picture` : null;
}

// Shows a labelled photo: whole where this tab has its file, else the small picture that the server has.
export function enlargePhoto(photo, title, actions) {
  enlarge(seen.get(photo)?.file, addressOf(photo), title, actions);
}

export function enlarge(file, small, title, actions = []) {
  const dialog = byId("viewer"), whole = file ? URL.createObjectURL(file) : null;
  const image = element("img", { alt: title });
  const note = element("p", { class: "hint" });
  const tries = [whole, small].filter(Boolean);
  const next = () => {
    const url = tries.shift();
    if (url) image.src = url;
    else image.hidden = true;
    if (!url) note.textContent = "There is no picture of this photo: only numbers computed from it are kept.";
    else if (url !== whole) note.textContent = whole ? "This browser cannot show the whole photo." : "Only this small picture is kept of the photo.";
    image.classList.toggle("small", url !== whole);
  };
  image.addEventListener("error", next);
  next();
  byId("viewer-photo").replaceChildren(image, note);
  byId("viewer-title").replaceChildren(...breakable(title));
  byId("viewer-actions").replaceChildren(...actions);
  dialog.addEventListener("close", () => whole && URL.revokeObjectURL(whole), { once: true });
  dialog.showModal();
}
