// The classes and their photos; cards stay in place when the rest changes, so that the keyboard keeps its place.

import { byId, confirmed, counted, element, say } from "./elements.js";
import { dropPlace, pictureOf, remember, thumbnail, unreadable } from "./photos.js";
import { ask, photosForm } from "./server.js";

const cards = new Map();

export function showClasses(classes, changed) {
  const wanted = new Set(classes.map((one) => one.id));
  for (const [id, card] of cards) {
    if (!wanted.has(id)) {
      card.root.remove();
      cards.delete(id);
    }
  }
  for (const one of classes) {
    if (!cards.has(one.id)) {
      cards.set(one.id, makeCard(one, changed));
      byId("classes").append(cards.get(one.id).root);
    }
    fill(cards.get(one.id), one, changed);
  }
}

export function focusClass(id) {
  cards.get(id)?.root.querySelector("input")?.focus();
}

function makeCard({ id, name }, changed) {
  const title = element("h3", { id: `class-${id}` }, name);
  const count = element("span", { class: "count" });
  const forget = element("button", { type: "button", class: "quiet", "aria-label": `Forget class ${name}` }, "Forget");
  const photos = element("ul", { class: "photos" });
  const error = element("p", { class: "error", role: "alert" });
  const card = { id, name, count, photos, error, shown: new Map() };
  const { place, showWaiting } = dropPlace({
    label: `Add photos of ${name}`, large: false, take: (files) => addPhotos(card, files, changed),
  });
  card.showWaiting = showWaiting;
  card.root = element(
    "article", { class: "card class", "aria-labelledby": title.id },
    element("header", {}, title, count, forget), photos, place, error,
  );
  forget.addEventListener("click", async () => {
    const held = counted(card.shown.size, "photo");
    if (!(await confirmed(`Forget the class “${name}” and what was learned from its ${held}?`, "Forget"))) return;
    await attempt(card, () => ask("DELETE", `classes/${id}`));
    say(`The class ${name} is forgotten.`);
    byId("class-name").focus();
    await changed({ refit: true });
  });
  return card;
}

function fill(card, { photos }, changed) {
  card.count.textContent = counted(photos.length, "photo");
  const wanted = new Set(photos);
  for (const [photo, item] of card.shown) {
    if (!wanted.has(photo)) {
      item.remove();
      card.shown.delete(photo);
    }
  }
  photos.forEach((photo, place) => {
    if (card.shown.has(photo)) return;
    const described = `photo ${place + 1} of ${card.name}`;
    const remove = element("button", { type: "button", "aria-label": `Remove ${described}`, title: "Remove" }, "×");
    const item = element("li", { class: "photo" }, pictureOf(photo, described, String(place + 1)), remove);
    remove.addEventListener("click", async () => {
      await attempt(card, () => ask("DELETE", `classes/${card.id}/photos/${photo}`));
      say(`Removed ${described}.`);
      focusClass(card.id);
      await changed({ refit: true });
    });
    card.shown.set(photo, item);
    card.photos.append(item);
  });
}

// One photo a request: a bad one does not hold up the others, and each can be told about.
async function addPhotos(card, files, changed) {
  card.error.textContent = "";
  const problems = [];
  let added = 0;
  for (const [number, file] of files.entries()) {
    card.showWaiting(`Reading photo ${number + 1} of ${files.length} …`);
    const problem = await unreadable(file);
    if (problem) {
      problems.push(problem);
      continue;
    }
    try {
      const [told, url] = await Promise.all([
        ask("POST", `classes/${card.id}/photos`, photosForm([file])), thumbnail(file),
      ]);
      remember(told.photos[0], url);
      added += 1;
      await changed({});
    } catch (error) {
      problems.push(error.message);
    }
  }
  card.showWaiting("");
  card.error.textContent = problems.join("\n");
  say(`${counted(added, "photo")} added to ${card.name}.`);
}

async function attempt(card, work) {
  card.error.textContent = "";
  try {
    await work();
  } catch (error) {
    card.error.textContent = error.message;
  }
}
