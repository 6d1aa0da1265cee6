// The fit: asked for, watched, cancelled; and what it says of the labelled photos.

import { showWaiting } from "./asking.js";
import { forgetNotes, moveTo, pointAt } from "./classes.js";
import { breakable, button, byId, counted, element, note, say, told } from "./elements.js";
import { fileNameOf, pictureOf } from "./pictures.js";
import { ask } from "./server.js";
import { now, photoWords } from "./state.js";

const LOOK_EVERY = 400; // milliseconds, while a fit is made
const MOST_DOUBTS = 3; // shown at once, so that the next step stays in reach
const dismissed = new Set(); // photos that a person has looked at again
let refresh = null;

export function prepareFitting(bringUpToDate) {
  refresh = bringUpToDate;
  byId("fit").addEventListener("click", fit);
  byId("cancel-fit").addEventListener("click", () => told(byId("fit-error"), () => ask("DELETE", "fit")));
}

// A fit is a job of the server: the page looks how far it is, and may have it cancelled.
export async function fit() {
  forgetNotes();
  await told(byId("fit-error"), async () => watch(await ask("POST", "fit?wait=0.3")));
}

// A fit that another tab asked for, or that was begun before this page was loaded.
export async function watchOthers() {
  if (now.workspace?.fitting && !now.fitting) await told(byId("fit-error"), async () => watch(await ask("GET", "fit")));
}

export function showFit() {
  const { classes, model } = now.workspace;
  const ready = classes.filter((one) => one.photos.length).length >= 2;
  byId("fit").disabled = !ready || Boolean(model?.fresh);
  byId("fit").textContent = model && !model.fresh ? "Fit again" : "Fit";
  if (!now.fitting) byId("fit-state").textContent = fitState(classes, model, ready);
  showDoubts(model);
}

async function watch(job) {
  showFitting(job);
  while (job.state === "running") {
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY));
    job = await ask("GET", "fit");
    showFitting(job);
  }
  await refresh();
  if (job.error) note(byId("fit-error"), [job.error]);
  if (job.state === "cancelled") byId("fit-state").textContent = "Cancelled; nothing has changed.";
  say(byId("fit-state").textContent);
}

function showFitting(job) {
  now.fitting = job.state === "running";
  byId("fit").hidden = now.fitting;
  byId("cancel-fit").hidden = byId("fit-progress").hidden = !now.fitting;
  showWaiting();
  if (!now.fitting) return;
  const bar = byId("fit-progress");
  if (job.total) [bar.max, bar.value] = [job.total, job.done];
  else bar.removeAttribute("value"); // moves to and fro, because nobody knows how far it is
  byId("fit-state").textContent = job.total ? `Fitting: ${job.stage} …` : "Fitting …";
}

function fitState(classes, model, ready) {
  if (now.workspace.unchangeable) return `The model knows ${model.classes.join(", ")}.`;
  if (!ready) return "Add at least one photo to each of two or more classes.";
  if (!model) return `${counted(classes.length, "class", "classes")} ready.`;
  if (!model.fresh) return "The photos have changed since the last fit.";
  return `Fitted to ${counted(model.classes.length, "class", "classes")}.${accuracy(model)}`;
}

// A fit without a photo has one photo less of its class: what is expected of new photos is corrected for that.
function accuracy({ left_out_accuracy: leftOut, expected_accuracy: expected }) {
  if (leftOut === null) return "";
  const measured = ` Tested by leaving out each photo in turn: ${Math.round(100 * leftOut)} % right.`;
  return expected === null ? measured : `${measured} Expect about ${Math.round(100 * expected)} % on new photos.`;
}

function showDoubts(model) {
  const known = photoWords();
  const doubts = (model?.doubts ?? []).filter(({ photo, looks_like: other }) => (
    known.has(photo) && known.get(photo).owner.name !== other && !dismissed.has(photo)
  ));
  byId("doubts").hidden = !doubts.length;
  const items = doubts.map((doubt) => doubtItem(doubt, known)), rest = items.splice(MOST_DOUBTS);
  const more = rest.length ? [element("details", {}, element("summary", {}, `${rest.length} more`), element("ul", {}, ...rest))] : [];
  byId("doubts").replaceChildren("Please look again:", element("ul", {}, ...items), ...more);
}

function capital(words) {
  return words[0].toUpperCase() + words.slice(1);
}

function doubtItem({ photo, looks_like: other }, known) {
  const { words, number, owner } = known.get(photo), file = fileNameOf(photo);
  return element(
    "li", {},
    button(pictureOf(photo, "", number), () => pointAt(photo), { class: "look", "aria-label": `Show ${words}`, title: "Show it among its class" }),
    element(
      "div", {}, element("p", {}, element("b", {}, ...breakable(file || capital(words))), ...breakable(`${file ? `, ${words},` : ""} looks like “${other}”.`)),
      element(
        "div", { class: "correction" },
        button(element("span", {}, ...breakable(`Move to ${other}`)), () => told(byId("fit-error"), () => moveTo(photo, owner.id, other)), { class: "small" }),
        button(element("span", {}, ...breakable(`It is ${owner.name}`)), () => {
          dismissed.add(photo);
          showDoubts(now.workspace.model);
        }, { class: "small" }),
      ),
    ),
  );
}
