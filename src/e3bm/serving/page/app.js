// The page: keeps what the server says in view, and sends what the person does.

import { answerCard, spoken } from "./answers.js";
import { showEpochs } from "./chart.js";
import { focusClass, showClasses } from "./classes.js";
import { byId, confirmed, counted, element, percent, say } from "./elements.js";
import { dropPlace, keepOnly, pictureOf, thumbnail, unreadable } from "./photos.js";
import { ask, photosForm } from "./server.js";

const MOST_ANSWERS = 30;
const LOOK_EVERY = 400; // milliseconds, while a fit is made
let workspace = null;
let fitting = false;

async function refresh() {
  const before = workspace?.token;
  workspace = await ask("GET", "workspace");
  if (before && before !== workspace.token) keepOnly(new Set()); // another server, whose numbers mean other photos
  const { classes, model } = workspace;
  keepOnly(new Set(classes.flatMap((one) => one.photos)));
  showClasses(classes, changed);
  const ready = classes.filter((one) => one.photos.length).length >= 2;
  byId("fit").disabled = !ready || Boolean(model?.fresh);
  byId("fit").textContent = model && !model.fresh ? "Fit again" : "Fit";
  if (!fitting) byId("fit-state").textContent = fitState(classes, model, ready);
  byId("download").disabled = !model;
  byId("restart").disabled = !classes.length && !model;
  byId("unchangeable").hidden = !workspace.unchangeable;
  byId("unchangeable").textContent = workspace.unchangeable ?? "";
  byId("new-class").hidden = Boolean(workspace.unchangeable);
  byId("together-switch").hidden = byId("together-hint").hidden = !workspace.together;
  byId("inside").hidden = !model;
  if (model) showEpochs(byId("charts"), byId("epochs"), model.rates, model.votes);
  showDoubts(model, classes);
}

async function changed({ refit = false }) {
  const fitted = Boolean(workspace?.model);
  await refresh();
  if (refit && fitted && !byId("fit").disabled) await fit();
}

function fitState(classes, model, ready) {
  if (workspace.unchangeable) return `The model knows ${model.classes.join(", ")}.`;
  if (!ready) return "Give at least two classes a photo each.";
  if (!model) return `${counted(classes.length, "class", "classes")} ready.`;
  if (!model.fresh) return "The photos have changed since the last fit.";
  const told = model.left_out_accuracy === null
    ? "" : ` Of photos left out one at a time, ${percent(model.left_out_accuracy)} were told right.`;
  return `Fitted to ${counted(model.classes.length, "class", "classes")}.${told}`;
}

function showDoubts(model, classes) {
  const names = new Map(classes.flatMap((one) => one.photos.map((photo) => [photo, one.name])));
  const doubts = (model?.doubts ?? []).filter((doubt) => names.has(doubt.photo));
  byId("doubts").hidden = !doubts.length;
  const items = doubts.map(({ photo, looks_like: other }) => element(
    "li", {}, pictureOf(photo, `a photo of ${names.get(photo)}`, "?"),
    `stands under “${names.get(photo)}” but looks like “${other}”`,
  ));
  byId("doubts").replaceChildren("Please look again:", element("ul", {}, ...items));
}

// A fit is a job of the server: the page looks how far it is, and may have it cancelled.
async function fit() {
  await told("fit-error", async () => watch(await ask("POST", "fit?wait=0.3")));
}

async function watch(job) {
  showFitting(job);
  while (job.state === "running") {
    await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY));
    job = await ask("GET", "fit");
    showFitting(job);
  }
  await refresh();
  if (job.error) byId("fit-error").textContent = job.error;
  if (job.state === "cancelled") byId("fit-state").textContent = "Cancelled; nothing has changed.";
  say(byId("fit-state").textContent);
}

function showFitting(job) {
  fitting = job.state === "running";
  byId("fit").hidden = fitting;
  byId("cancel-fit").hidden = byId("fit-progress").hidden = !fitting;
  if (!fitting) return;
  const bar = byId("fit-progress");
  if (job.total) [bar.max, bar.value] = [job.total, job.done];
  else bar.removeAttribute("value"); // moves to and fro, because nobody knows how far it is
  byId("fit-state").textContent = job.total ? `Fitting: ${job.stage} …` : "Fitting …";
}

// A fit that another tab asked for, or that was begun before this page was loaded.
async function watchOthers() {
  if (workspace?.fitting && !fitting) await told("fit-error", async () => watch(await ask("GET", "fit")));
}

async function classify(given) {
  if (!workspace?.model) {
    byId("ask-error").textContent = "Fit the classifier first, or open a model.";
    return;
  }
  const together = workspace.together && byId("together").checked;
  const found = await Promise.all(given.map(unreadable));
  const files = given.filter((file, place) => !found[place]);
  const problems = found.filter(Boolean);
  const groups = together && files.length ? [files] : files.map((file) => [file]);
  for (const [number, group] of groups.entries()) {
    asking.showWaiting(groups.length > 1 ? `Looking at photo ${number + 1} of ${groups.length} …` : "Looking …");
    try {
      const [{ predictions }, urls] = await Promise.all([
        ask("POST", "predict", photosForm(group, { together: String(together) })), Promise.all(group.map(thumbnail)),
      ]);
      predictions.forEach((prediction, place) => byId("answers").prepend(answerCard(prediction, urls[place])));
      say(predictions.length === 1 ? spoken(predictions[0]) : `${counted(predictions.length, "photo")} classified.`);
    } catch (error) {
      problems.push(error.message);
    }
  }
  while (byId("answers").children.length > MOST_ANSWERS) byId("answers").lastElementChild.remove();
  asking.showWaiting("");
  byId("ask-error").textContent = problems.join("\n");
}

// Runs work; a sentence about what went wrong appears where it was asked for. Gives the work's result or undefined.
async function told(place, work) {
  byId(place).textContent = "";
  try {
    return await work();
  } catch (error) {
    byId(place).textContent = error.message;
    return undefined;
  }
}

const asking = dropPlace({ label: "Choose photos to classify", large: true, take: classify });
byId("ask-drop").append(asking.place);

byId("new-class").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = byId("class-name").value;
  const made = await told("class-error", () => ask("POST", "classes", { name }));
  if (!made) return;
  byId("class-name").value = "";
  await refresh();
  focusClass(made.id);
  say(`The class ${made.name} is there; add its photos.`);
});

const touch = matchMedia("(any-pointer: coarse)").matches || navigator.maxTouchPoints > 0;
document.documentElement.classList.toggle("touch", touch);

byId("fit").addEventListener("click", fit);
byId("cancel-fit").addEventListener("click", () => told("fit-error", () => ask("DELETE", "fit")));

byId("open").querySelector("input").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (!file) return;
  if ((workspace.classes.length || workspace.model) && !(await confirmed("Opening a model forgets the classes that are here.", "Open"))) return;
  const form = new FormData();
  form.append("model", file);
  if (await told("top-error", () => ask("PUT", "model", form))) {
    byId("answers").replaceChildren();
    await refresh();
    say("The model is open.");
  }
});

byId("download").addEventListener("click", () => {
  element("a", { href: "model", download: "model.e3bm" }).click();
});

byId("restart").addEventListener("click", async () => {
  if (!(await confirmed("Forget all classes and what was learned from their photos?", "Forget all"))) return;
  await told("top-error", () => ask("DELETE", "workspace"));
  byId("answers").replaceChildren();
  await refresh();
  byId("class-name").focus();
});

// A photo dropped beside its place must not replace the page.
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());

await told("top-error", refresh);
await watchOthers();
