// The page: keeps what the server says in view, and sends what the person does.

import { answerWaiting, bringAnswersUpToDate, clearAnswers, dropWaiting, prepareAsking } from "./asking.js";
import { showEpochs } from "./chart.js";
import { addFolders, focusClass, forgetNotes, prepareClasses, showClasses, showFound } from "./classes.js";
import { dropPlace } from "./dropping.js";
import { byId, confirmed, element, note, say, told, withCode } from "./elements.js";
import { fit, prepareFitting, showFit, watchOthers } from "./fitting.js";
import { keepOnly } from "./pictures.js";
import { ask } from "./server.js";
import { now } from "./state.js";

async function refresh() {
  const before = now.workspace;
  const workspace = now.workspace = await ask("GET", "workspace");
  const { classes, model, pictures } = workspace;
  const sameServer = before?.token === workspace.token; // the numbers of another one mean other photos
  const former = sameServer ? before.classes : [];
  if (!sameServer) keepOnly([]);
  keepOnly(classes);
  showClasses(classes, changed);
  showFit();
  for (const id of ["download", "onnx"]) byId(id).disabled = !model;
  byId("with-pictures").disabled = !model || !pictures;
  byId("restart").disabled = !classes.length && !model;
  byId("unchangeable").hidden = !workspace.unchangeable;
  byId("unchangeable").textContent = workspace.unchangeable ?? "";
  byId("no-pictures").hidden = !workspace.no_pictures;
  byId("no-pictures").replaceChildren(...withCode(workspace.no_pictures ?? ""));
  byId("new-class").hidden = Boolean(workspace.unchangeable);
  byId("together-switch").hidden = byId("together-hint").hidden = !workspace.together;
  byId("inside").hidden = !model;
  byId("kept").textContent = pictures
    ? "The server keeps numbers computed from labelled photos (features) and a small picture of each until you forget them or it is stopped (its options --keep and --pictures change that)."
    : "The server keeps numbers computed from labelled photos (features); the small pictures on this page live in this browser tab only.";
  if (model) showEpochs(byId("charts"), byId("epochs"), model.rates, model.votes);
  if (model?.version !== before?.model?.version || namesOf(classes) !== namesOf(former)) bringAnswersUpToDate(former);
  answerWaiting();
}

function namesOf(classes) {
  return classes.map((one) => one.name).join("\n");
}

async function changed({ refit = false }) {
  const fitted = Boolean(now.workspace?.model);
  await refresh();
  if (refit && fitted && !byId("fit").disabled) await fit();
}

async function beginAnew() {
  clearAnswers();
  forgetNotes();
  await refresh();
}

async function learn() {
  await refresh();
  if (!byId("fit").disabled) await fit();
}

prepareClasses();
prepareFitting(refresh);
prepareAsking(learn);

const folders = dropPlace({
  label: "Choose a folder whose subfolders become classes", words: "Subfolders become classes: drop a folder, or",
  kind: "folders", folder: true, whole: byId("teach"),
  take: (files) => told(byId("class-error"), async () => {
    if (!now.workspace) await refresh(); // a folder that was quicker than the server's first answer
    forgetNotes();
    note(byId("class-error"), await addFolders(files, folders.showWaiting));
  }),
});
byId("folder-drop").append(folders.place);

byId("new-class").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = byId("class-name").value;
  const made = await told(byId("class-error"), () => ask("POST", "classes", { name }));
  if (!made) return;
  byId("class-name").value = "";
  await refresh();
  focusClass(made.id);
  say(`The class ${made.name} was added; add its photos.`);
});
byId("new-class").querySelector("button").disabled = false; // before, the browser would have sent the form by itself

byId("find-class").addEventListener("input", showFound);

const touch = matchMedia("(any-pointer: coarse)").matches || navigator.maxTouchPoints > 0;
document.documentElement.classList.toggle("touch", touch);

// What only researchers want to see; the choice is kept in this browser.
const research = byId("research");
const showResearch = () => document.documentElement.classList.toggle("research", research.checked);
research.checked = localStorage.getItem("e3bm-research") === "yes";
research.addEventListener("change", () => {
  localStorage.setItem("e3bm-research", research.checked ? "yes" : "no");
  showResearch();
});
showResearch();

byId("open").querySelector("input").addEventListener("change", async (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (!file) return;
  const { classes, model, limits } = now.workspace;
  if ((classes.length || model) && !(await confirmed("Opening a model forgets the classes that are here.", "Open"))) return;
  await told(byId("top-error"), async () => {
    if (file.size > limits.model_bytes) throw new Error(`${file.name} is larger than the ${limits.model_bytes / 1e6} MB that this server takes.`);
    const form = new FormData();
    form.append("model", file);
    await ask("PUT", "model", form);
    await beginAnew();
    say("The model is open.");
  });
});

byId("download").addEventListener("click", () => {
  const pictures = byId("with-pictures").checked && !byId("with-pictures").disabled;
  element("a", { href: pictures ? "model?pictures=true" : "model", download: "model.e3bm" }).click();
});

// Asked for by script: what goes wrong is a sentence on the page, not a file that holds one.
byId("onnx").addEventListener("click", () => told(byId("top-error"), async () => {
  byId("onnx").disabled = true;
  say("The ONNX file is being made.");
  byId("onnx").textContent = "Making ONNX …";
  try {
    const url = URL.createObjectURL(await ask("GET", "model.onnx"));
    element("a", { href: url, download: "model.onnx" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  } finally {
    byId("onnx").disabled = false;
    byId("onnx").textContent = "ONNX";
  }
}));

byId("restart").addEventListener("click", async () => {
  if (!(await confirmed("Forget all classes and what was learned from their photos?", "Forget all"))) return;
  await told(byId("top-error"), async () => {
    await ask("DELETE", "workspace");
    dropWaiting();
    await beginAnew();
    byId("class-name").focus();
  });
});

byId("viewer-close").addEventListener("click", () => byId("viewer").close());
byId("viewer").addEventListener("click", (event) => event.target === byId("viewer") && byId("viewer").close());

// A photo dropped beside its place must not replace the page.
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());

await told(byId("top-error"), refresh);
await watchOthers();
