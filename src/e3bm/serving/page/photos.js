// Small pictures of photos, kept in this tab only, and the places where photos are dropped or chosen.

import { element } from "./elements.js";

const SIDE = 128;
// Naming the types makes phones that store other formats convert to one of these.
const TYPES = "image/jpeg,image/png,image/webp,image/gif,image/bmp,image/tiff";
const thumbnails = new Map();

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

// A sentence about a file that this browser cannot read, such as a folder that was dropped; null for other files.
export async function unreadable(file) {
  try {
    await file.slice(0, 1).arrayBuffer();
    return null;
  } catch {
    return `${file.name} cannot be used: it is a folder, or a file that this browser may not read.`;
  }
}

export function remember(photo, url) {
  if (url) thumbnails.set(photo, url);
}

// Drops the pictures of photos that the server no longer has.
export function keepOnly(photos) {
  for (const [photo, url] of thumbnails) {
    if (!photos.has(photo)) {
      URL.revokeObjectURL(url);
      thumbnails.delete(photo);
    }
  }
}

export function picture(url, description, placeholder) {
  if (url) return element("img", { class: "picture", src: url, alt: description });
  return element("span", { class: "picture", role: "img", "aria-label": description }, placeholder);
}

export function pictureOf(photo, description, placeholder) {
  return picture(thumbnails.get(photo), description, placeholder);
}

// A place that takes photos: dropped, chosen from files, or from a phone's camera. `take` gets a list of files.
export function dropPlace({ label, large, take }) {
  const waiting = element("span", { class: "waiting", hidden: true });
  const place = element(
    "div", { class: large ? "drop large" : "drop" },
    element("span", { class: "dragging-hint" }, large ? "Drop photos here, or" : "Drop photos, or"),
    chooser("choose photos", label, { multiple: true }, take),
    chooser("use the camera", `${label} with the camera`, { capture: "environment" }, take, "camera"),
    waiting,
  );
  place.addEventListener("dragover", (event) => {
    event.preventDefault();
    place.classList.add("over");
  });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    place.classList.remove("over");
    if (event.dataTransfer.files.length) take([...event.dataTransfer.files]);
  });
  const showWaiting = (sentence) => {
    waiting.hidden = !sentence;
    waiting.textContent = sentence;
  };
  return { place, showWaiting };
}

function chooser(words, label, options, take, kind = "") {
  const input = element("input", { type: "file", accept: TYPES, "aria-label": label, ...options });
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = ""; // so that the same file can be chosen again
    if (files.length) take(files);
  });
  return element("label", { class: `choose ${kind}` }, input, words);
}
