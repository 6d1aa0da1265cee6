// Photos that are asked about: in portions with progress, again after another fit, corrected, and as a CSV file.

import { inNewNames, showAnswer, spoken } from "./answers.js";
import { addPhoto } from "./classes.js";
import { dropPlace, pathOf, sortedOut, unreadable } from "./dropping.js";
import { breakable, button, byId, classChoice, counted, element, listed, note, say } from "./elements.js";
import { worthLabelling } from "./next.js";
import { enlarge, kindOf, picture, pictureUrl, thumbnail } from "./pictures.js";
import { ask, photosForm } from "./server.js";
import { classNamed, newNames, now, portions } from "./state.js";

const MOST_COUNTED = 8; // classes, in the line above the answers
const AT_ONCE = 8; // photos in a request, so that answers appear while others are looked at
let waiting = []; // files that are asked about as soon as there is a fit
let answers = []; // { file, url, prediction, version, learning, problem, taught, card }, the newest batch first
let stopped = false;
let learn = null; // fits again and brings the page up to date

export function prepareAsking(refit) {
  learn = refit;
  const { place } = dropPlace({
    label: "Choose photos to classify", words: "Drop photos or a folder here, or", kind: "large", whole: byId("ask-card"), take: classify,
  });
  byId("ask-drop").append(place);
  byId("stop-asking").addEventListener("click", () => { stopped = true; });
  byId("save-csv").addEventListener("click", saveCsv);
  byId("clear-answers").addEventListener("click", clearAnswers);
  byId("ask-again").addEventListener("click", askAgain);
  byId("ask-waiting").querySelector("button").addEventListener("click", dropWaiting);
}

export function clearAnswers() {
  for (const { url } of answers) if (url) URL.revokeObjectURL(url);
  answers = [];
  byId("answers").replaceChildren();
  note(byId("ask-error"), []);
  showAround();
}

// Marks the answers of a former fit, and shows the classes that were there before as they are called now.
export function bringAnswersUpToDate(before) {
  const names = newNames(before);
  for (const one of answers) {
    one.prediction = inNewNames(one.prediction, names);
    one.taught = names.get(one.taught) ?? one.taught;
    showAnswer(one, teach);
  }
  showAround();
}

// Photos that were dropped before there was a fit are answered by the first one.
export async function answerWaiting() {
  const given = now.workspace?.model ? waiting.splice(0) : [];
  showWaiting();
  if (given.length) await classify(given);
}

export function dropWaiting() {
  waiting = [];
  showWaiting();
}

export function showWaiting() {
  const photos = counted(sortedOut(waiting).photos.length, "photo");
  byId("ask-waiting").hidden = !waiting.length;
  byId("ask-waiting").firstElementChild.textContent = now.fitting
    ? `The classifier is being fitted; then it will answer about ${photos}.`
    : `Fit the classifier first, or open a model; then it will answer about ${photos}.`;
}

async function classify(given) {
  note(byId("ask-error"), []);
  if (!now.workspace?.model) {
    waiting.push(...given);
    showWaiting();
    return;
  }
  const { photos, problems } = sortedOut(given);
  const found = await Promise.all(photos.map(unreadable));
  problems.push(...found.filter(Boolean));
  const files = photos.filter((file, place) => !found[place]);
  const made = [], before = byId("answers").firstElementChild;
  if (files.length) bringIntoView();
  await inPortions(files.map((file) => ({ file, alone: files.length === 1 })), problems, (one) => {
    answers.splice(made.length, 0, one);
    made.push(one);
    byId("answers").insertBefore(showAnswer(one, teach), before);
  });
  note(byId("ask-error"), problems);
  if (made.length) say(made.length === 1 ? spoken(made[0].prediction) : `${counted(made.length, "photo")} classified.`);
}

async function askAgain() {
  const problems = [];
  note(byId("ask-error"), []);
  await inPortions(answers.filter(isFormer), problems, (one) => showAnswer(one, teach));
  note(byId("ask-error"), problems);
  say("The answers are those of the last fit.");
}

// Sends items with a file each, a portion at a time; `show` is called for each that was answered.
async function inPortions(items, problems, show) {
  const together = now.workspace.together && byId("together").checked;
  let done = 0;
  stopped = false;
  const groups = portions(items, together ? Infinity : AT_ONCE, (item) => item.file);
  if (together && groups.length > 1) problems.push(`There are too many photos for one request, so they were used together in ${groups.length} groups.`);
  for (const some of groups) {
    showProgress(done, items.length);
    await askPortion(some, together, problems, show);
    done += some.length;
    if (stopped && done < items.length) problems.push(`Stopped after ${done} of ${items.length} photos.`);
    if (stopped) break;
  }
  showProgress(0, 0);
  showAround();
}

// A portion that is refused as a whole is asked one by one, so that each photo has its answer or its reason.
async function askPortion(some, together, problems, show) {
  try {
    for (const one of some) one.url ??= await thumbnail(one.file);
    const pictures = some.some((one) => !one.url); // of a format that this browser does not show; the server does
    const fields = { together: String(together), pictures: String(pictures) };
    const { classes } = now.workspace;
    const answer = await ask("POST", "predict", photosForm(some.map((one) => one.file), fields));
    if (together && answer.note && !problems.includes(answer.note)) problems.push(answer.note);
    for (const [place, prediction] of answer.predictions.entries()) {
      const one = some[place];
      if (prediction.picture) one.url ??= pictureUrl(prediction.picture);
      if (prediction.error) problems.push(prediction.error);
      else show(Object.assign(one, { prediction: inNewNames(prediction, newNames(classes)), version: answer.version }));
    }
  } catch (error) {
    const name = some[0].file.name;
    if (some.length === 1) problems.push(error.message.includes(name) ? error.message : `${name} cannot be used: ${error.message}`);
    else if (together) problems.push(error.message);
    else for (const one of some) await askPortion([one], false, problems, show);
  }
}

// "No, it is …", or "right": the photo joins a class, a new fit is made, and all answers are those of it.
async function teach(answer, name) {
  Object.assign(answer, { learning: name, problem: null }); // said at once: on a busy machine the fit takes a while
  showAnswer(answer, teach);
  showNext();
  try {
    const target = classNamed(name) ?? (await ask("POST", "classes", { name }));
    await addPhoto(target.id, answer.file);
    answer.taught = name;
    await learn();
  } catch (error) {
    answer.problem = error.message;
  }
  answer.learning = null;
  showAnswer(answer, teach);
  showNext();
  if (!answer.problem) await askAgain();
}

// Answers appear below this: whoever dropped photos further up should see them come.
function bringIntoView() {
  const { top, bottom } = byId("ask-card").getBoundingClientRect();
  if (top < 0 || bottom > 0.8 * innerHeight) byId("ask").scrollIntoView({ block: "start" });
}

function isFormer(one) {
  return now.workspace.model && one.version !== now.workspace.model.version;
}

function showProgress(done, total) {
  byId("asking").hidden = !total;
  byId("ask-progress").max = total || 1;
  byId("ask-progress").value = done;
  byId("asking-words").textContent = total > 1 ? `Classified ${done} of ${total} photos …` : "Classifying …";
  showAskAgain();
}

// What stands around the answers: how many there are of what, what can be done with them, what to label next.
function showAround() {
  byId("answers-head").hidden = !answers.length;
  const counts = new Map();
  for (const { prediction } of answers) {
    const name = prediction.unknown ? "none of these" : prediction.label;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  // A number stays on the line of its name.
  const parts = [...counts].sort((one, other) => other[1] - one[1]).map(([name, count]) => `${count}\u00a0${name}`);
  byId("answers-count").replaceChildren(element("b", {}, counted(answers.length, "answer")), `: ${listed(parts, MOST_COUNTED)}`);
  showAskAgain();
  showNext();
}

function showAskAgain() {
  const former = answers.filter(isFormer).length;
  byId("ask-again").hidden = !former || !byId("asking").hidden;
  byId("ask-again").textContent = `Ask again about ${counted(former, "photo")}`;
}

function showNext() {
  const found = now.workspace?.unchangeable || answers.length < 2 ? [] : worthLabelling(answers);
  byId("next").hidden = !found.length;
  byId("next-title").textContent = `Worth labelling next: ${counted(found.length, "photo")}, and why`;
  byId("next-list").replaceChildren(...found.map(({ answer, reason, likely }) => element(
    "li", {},
    button(picture(answer.url, "", kindOf(answer.file)), () => enlarge(answer.file, answer.url, answer.file.name), {
      class: "look", "aria-label": `Enlarge ${answer.file.name}`,
    }),
    element(
      "div", {}, element("p", {}, element("b", {}, ...breakable(answer.file.name)), ...breakable(` ${reason}.`)),
      element(
        "div", { class: "correction" },
        ...likely.map((name) => button(element("span", {}, ...breakable(`It is ${name}`)), () => teach(answer, name), { class: "small" })),
        classChoice("It is …", now.workspace.classes.map((one) => one.name).filter((name) => !likely.includes(name)), (name) => teach(answer, name)),
      ),
    ),
  )));
}

// The columns of `e3bm predict --csv`, and the class that a photo was given here.
function saveCsv() {
  const classes = [...new Set(answers.flatMap(({ prediction }) => Object.keys(prediction.probabilities)))].sort();
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const head = ["path", "label", "confidence", "unknown", "unknown_score", "disagreement", "corrected", ...classes.map((name) => `p(${name})`)];
  const rows = answers.map(({ file, prediction, taught }) => [
    pathOf(file), prediction.label, prediction.probabilities[prediction.label].toFixed(6), prediction.unknown ? "yes" : "no",
    prediction.unknown_score.toFixed(6), prediction.disagreement.toFixed(6), taught ?? "", ...classes.map((name) => prediction.probabilities[name]?.toFixed(6) ?? ""),
  ]);
  const text = [head, ...rows].map((row) => row.map(cell).join(",")).join("\n");
  const url = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
  element("a", { href: url, download: "answers.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
