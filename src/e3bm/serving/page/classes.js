// The classes and their photos; cards stay in place when the rest changes, so that the keyboard keeps its place.

import { byClassFolder, draggablePhoto, dropPlace, pathOf, sortedOut, unreadable } from "./dropping.js";
import { breakable, button, byId, classChoice, confirmed, counted, element, listed, note, say, told, words } from "./elements.js";
import { enlargePhoto, fileNameOf, pictureOf, remember, thumbnail } from "./pictures.js";
import { ask, photosForm } from "./server.js";
import { classNamed, now } from "./state.js";

const MOST_SHOWN = 12; // photos of a class, until all are asked for
const FILTER_FROM = 13; // classes
const SPLIT = /^(meta[-_])?(train|val|valid|validation|test)$/i;
const SHOWN_EVERY = 8; // photos added until the page is brought up to date
const cards = new Map();
let changed = null;

export function showClasses(classes, whenChanged) {
  changed = whenChanged;
  const wanted = new Set(classes.map((one) => one.id));
  for (const [id, card] of cards) {
    if (!wanted.has(id)) {
      card.root.remove();
      cards.delete(id);
    }
  }
  for (const one of classes) {
    if (!cards.has(one.id)) {
      cards.set(one.id, makeCard(one.id));
      byId("classes").append(cards.get(one.id).root);
    }
    fill(cards.get(one.id), one);
  }
  byId("find-class").hidden = classes.length < FILTER_FROM;
  if (classes.length < FILTER_FROM) byId("find-class").value = "";
  byId("class-count").textContent = classes.length ? counted(classes.length, "class", "classes") : "";
  showFound();
}

export function showFound() {
  const wanted = byId("find-class").value.trim().toLowerCase();
  for (const card of cards.values()) card.root.hidden = !card.name.toLowerCase().includes(wanted);
  showFurther();
}

// The classes scroll by themselves on a wide screen: how many there are below is said at the edge.
export function prepareClasses() {
  const list = byId("teach");
  for (const kind of ["scroll", "scrollend"]) list.addEventListener(kind, showFurther, { passive: true });
  new ResizeObserver(showFurther).observe(list);
  new ResizeObserver(showFurther).observe(byId("classes"));
  byId("further").firstElementChild.addEventListener("click", () => list.scrollBy({ top: 0.8 * list.clientHeight, behavior: "smooth" }));
}

function showFurther() {
  const list = byId("teach"), edge = list.getBoundingClientRect().bottom;
  const scrolls = list.scrollHeight > list.clientHeight + 1 && getComputedStyle(list).overflowY === "auto";
  const cut = scrolls ? [...cards.values()].map(({ root }) => root.getBoundingClientRect()).filter(({ bottom }) => bottom > edge + 1) : [];
  const below = cut.filter(({ top, bottom }) => (top + bottom) / 2 > edge).length; // the others are seen in part
  byId("further").hidden = !cut.length;
  byId("further").firstElementChild.textContent = below ? `↓ ${counted(below, "class", "classes")} below` : "↓ more below";
}

// What was said of photos that were dropped is of no use after the next drop, or after a fit.
export function forgetNotes() {
  note(byId("class-error"), []);
  for (const card of cards.values()) note(card.error, []);
}

export function focusClass(id) {
  cards.get(id)?.root.querySelector(".drop input")?.focus();
}

// Brings a photo into view and makes it stand out for a moment.
export function pointAt(photo) {
  for (const card of cards.values()) {
    const item = card.shown.get(photo);
    if (!item) continue;
    card.all = true;
    item.hidden = false;
    item.scrollIntoView({ block: "center" });
    item.querySelector(".look").focus();
  }
}

export async function moveTo(photo, from, name) {
  const target = classNamed(name) ?? (await ask("POST", "classes", { name }));
  await ask("PATCH", `classes/${from}/photos/${photo}`, { to: target.id });
  say(`Moved to ${target.name}.`);
  await changed({ refit: true });
}

function makeCard(id) {
  const title = element("h3", { id: `class-${id}` });
  const count = element("span", { class: "count" });
  const photos = element("ul", { class: "photos" });
  const error = element("div", { class: "error notes", role: "alert" });
  const card = { id, name: "", title, count, photos, error, shown: new Map(), all: false };
  card.rename = button("Rename", () => rename(card), { class: "quiet" });
  card.forget = button("Forget", () => forget(card), { class: "quiet" });
  card.more = button("", () => {
    card.all = !card.all;
    showSome(card);
  }, { class: "quiet more" });
  card.root = element("article", { class: "card class", "aria-labelledby": title.id });
  const { place, showWaiting } = dropPlace({
    label: "Add photos", words: "Drop photos, or", whole: card.root,
    take: (files) => takePhotos(card, files), takeMoved: ({ photo, from }) => takeMoved(card, photo, from),
  });
  card.showWaiting = showWaiting;
  card.choosers = place.querySelectorAll("input");
  card.root.append(element("header", {}, title, count, card.rename, card.forget), photos, card.more, place, error);
  return card;
}

function fill(card, { name, photos }) {
  if (card.name !== name) {
    card.name = name;
    card.title.replaceChildren(...breakable(name));
    card.rename.setAttribute("aria-label", `Rename class ${name}`);
    card.forget.setAttribute("aria-label", `Forget class ${name}`);
    card.choosers.forEach((input, place) => input.setAttribute("aria-label", `Add photos of ${name}${place ? " with the camera" : ""}`));
    for (const item of card.shown.values()) item.remove();
    card.shown.clear();
  }
  card.count.textContent = counted(photos.length, "photo");
  const wanted = new Set(photos);
  for (const [photo, item] of card.shown) {
    if (!wanted.has(photo)) {
      item.remove();
      card.shown.delete(photo);
    }
  }
  photos.forEach((photo, place) => {
    if (!card.shown.has(photo)) card.shown.set(photo, photoItem(card, photo));
    const item = card.shown.get(photo), described = `photo ${place + 1} of ${name}`;
    item.querySelector(".look").setAttribute("aria-label", `Enlarge ${described}`);
    item.querySelector(".remove").setAttribute("aria-label", `Remove ${described}`);
    card.photos.append(item);
  });
  showSome(card);
}

function showSome(card) {
  const items = [...card.shown.values()];
  items.forEach((item, place) => { item.hidden = !card.all && items.length > MOST_SHOWN && place >= MOST_SHOWN - 1; });
  card.more.hidden = items.length <= MOST_SHOWN;
  card.more.textContent = card.all ? "Show fewer" : `Show all ${items.length}`;
}

function photoItem(card, photo) {
  const place = () => [...card.shown.keys()].indexOf(photo) + 1;
  const look = button(pictureOf(photo, "", card.shown.size + 1), () => {
    const file = fileNameOf(photo), close = () => byId("viewer").close();
    const move = classChoice("Move to …", now.workspace.classes.map((one) => one.name).filter((name) => name !== card.name), async (name) => {
      close();
      await told(card.error, () => moveTo(photo, card.id, name));
    });
    const remove = button("Remove", async () => {
      close();
      await removePhoto(card, photo);
    }, { class: "danger" });
    enlargePhoto(photo, `Photo ${place()} of ${card.name}${file ? ` (${file})` : ""}`, [move, remove]);
  }, { class: "look", title: fileNameOf(photo) || "Enlarge" });
  const remove = button("×", () => removePhoto(card, photo), { class: "remove", title: "Remove" });
  const item = element("li", { class: "photo" }, look, remove);
  draggablePhoto(item, photo, card.id);
  return item;
}

async function removePhoto(card, photo) {
  await told(card.error, async () => {
    await ask("DELETE", `classes/${card.id}/photos/${photo}`);
    say(`A photo of ${card.name} was removed.`);
  });
  focusClass(card.id);
  await changed({ refit: true });
}

async function takeMoved(card, photo, from) {
  if (from !== card.id) await told(card.error, () => moveTo(photo, from, card.name));
}

async function rename(card) {
  await words(`What should the class “${card.name}” be called?`, card.name, "Rename", async (name) => {
    await ask("PATCH", `classes/${card.id}`, { name });
    await changed({});
    say(`The class is now called ${card.name}.`);
  });
}

async function forget(card) {
  const held = counted(card.shown.size, "photo");
  if (!(await confirmed(`Forget the class “${card.name}” and what was learned from its ${held}?`, "Forget"))) return;
  await told(card.error, async () => {
    await ask("DELETE", `classes/${card.id}`);
    say(`The class ${card.name} was forgotten.`);
  });
  byId("class-name").focus();
  await changed({ refit: true });
}

async function takePhotos(card, files) {
  await told(card.error, async () => {
    forgetNotes();
    note(card.error, await addPhotos(card.id, files));
  });
}

// One photo a request: a bad one does not hold up the others; gives a sentence about each that was not used.
async function addPhotos(id, given) {
  const card = cards.get(id), { photos, problems } = sortedOut(given);
  let added = 0;
  for (const [number, file] of photos.entries()) {
    card.showWaiting(`Reading photo ${number + 1} of ${photos.length} …`);
    const problem = await unreadable(file);
    if (problem) {
      problems.push(problem);
      continue;
    }
    try {
      await addPhoto(id, file);
      added += 1;
      if (added % SHOWN_EVERY === 0) await changed({});
    } catch (error) {
      problems.push(error.message.includes(file.name) ? error.message : `${file.name} cannot be used: ${error.message}`);
    }
  }
  await changed({});
  card.showWaiting("");
  say(`${counted(added, "photo")} added to ${card.name}.`);
  return problems;
}

export async function addPhoto(id, file) {
  const [answer, url] = await Promise.all([
    ask("POST", `classes/${id}/photos`, photosForm([file])), thumbnail(file),
  ]);
  remember(answer.photos[0], url, file);
}

// Every class folder becomes a class, or adds to the class of that name.
export async function addFolders(given, showWaiting) {
  const { photos, problems } = sortedOut(given);
  const { classes: folders, loose } = byClassFolder(photos);
  if (loose.length) problems.push(`Not used (not in a class folder): ${listed(loose.map(pathOf))}.`);
  if (folders.size && [...folders.keys()].every((name) => SPLIT.test(name))) {
    const splits = [...folders.keys()].join(" and ");
    return [...problems, `The subfolders are ${splits}, which are splits of a data set, not classes; drop one of them.`];
  }
  const filled = new Set(); // classes: two folders may have gone into one
  for (const [place, [name, files]] of [...folders].entries()) {
    showWaiting(`Folder ${place + 1} of ${folders.size}: ${name} …`);
    try {
      const target = sameName(name) ?? (await ask("POST", "classes", { name }));
      filled.add(target.id);
      await changed({});
      if (target.name !== name) problems.push(`The photos of ${name}/ were added to the class “${target.name}”: the two names ${difference(name, target.name)}.`);
      problems.push(...(await addPhotos(target.id, files)).map((problem) => `${target.name}: ${problem}`));
    } catch (error) {
      problems.push(error.message);
    }
  }
  showWaiting("");
  if (filled.size) say(`${counted(filled.size, "class", "classes")} from folders.`);
  return problems;
}

function sameName(name) {
  const same = (one) => plain(one).toLowerCase();
  return now.workspace.classes.find((one) => same(one.name) === same(name));
}

function difference(one, other) {
  return plain(one) === plain(other) ? "look the same" : "differ only in upper and lower case";
}

// A name as the server keeps it.
function plain(name) {
  return name.normalize("NFC").trim().replace(/\s+/g, " ");
}
