// Small pieces that every part of the page is made of.

const MOST_NOTES = 3; // in view, until all are asked for

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") made.className = value;
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function button(content, press, properties = {}) {
  const made = element("button", { type: "button", ...properties }, content);
  made.addEventListener("click", press);
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

export function say(sentence) {
  byId("said").textContent = sentence;
}

export function counted(number, noun, plural = `${noun}s`) {
  return `${number} ${number === 1 ? noun : plural}`;
}

// Names in a row; of very many only the first.
export function listed(names, most = 10) {
  const more = names.length > most ? ` and ${names.length - most} more` : "";
  return `${names.slice(0, most).join(", ")}${more}`;
}

// The pieces of words, in which names may be broken after their joints where they are too long for their place.
export function breakable(words) {
  return words.split(/(?<=[_/-]|\.(?!\d))/).flatMap((part, place) => (place ? [element("wbr"), part] : [part]));
}

// The pieces of a sentence in which `commands` stand between backquotes.
export function withCode(sentence) {
  return sentence.split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));
}

export function percent(share) {
  const value = 100 * share;
  return `${value >= 99.95 || value < 0.05 ? Math.round(value) : value.toFixed(1)} %`;
}

// Sentences about what went wrong take the place of former ones, until somebody closes them; of many only the first.
export function note(place, sentences) {
  const items = sentences.map((one) => element("li", {}, ...breakable(one))), rest = items.splice(MOST_NOTES);
  const more = element("details", { hidden: !rest.length }, element("summary", {}, `${rest.length} more`), element("ul", {}, ...rest));
  const close = button("×", () => note(place, []), { class: "quiet close", "aria-label": "Close", title: "Close" });
  place.replaceChildren(...(items.length ? [element("div", {}, element("ul", {}, ...items), more), close] : []));
}

// Runs work; a sentence about what went wrong appears where it was asked for. Gives the work's result or undefined.
export async function told(place, work) {
  note(place, []);
  try {
    return await work();
  } catch (error) {
    note(place, [error.message]);
    return undefined;
  }
}

// Asks a question in a dialog; true when the answer is yes.
export async function confirmed(question, yes, no = "Keep") {
  return (await dialogue(question, yes, no, null)) === "yes";
}

// Asks for a few words in a dialog; null when there are none. Words that `accept` refuses can be mended.
export async function words(question, given, yes, accept = () => {}) {
  const typed = () => byId("confirm-words").value.trim();
  const answer = await dialogue(question, yes, "Cancel", given, () => accept(typed()));
  return answer === "yes" ? typed() || null : null;
}

function dialogue(question, yes, no, given, accept = () => {}) {
  const dialog = byId("confirm"), field = byId("confirm-words"), error = byId("confirm-error");
  byId("confirm-question").textContent = question;
  byId("confirm-yes").textContent = yes;
  byId("confirm-yes").className = given === null ? "danger" : "primary";
  byId("confirm-no").textContent = no;
  field.hidden = given === null;
  field.required = given !== null;
  field.value = given ?? "";
  note(error, []);
  dialog.returnValue = "no";
  dialog.showModal();
  if (given === null) byId("confirm-no").focus();
  else field.select();
  byId("confirm-no").onclick = () => dialog.close("no"); // no submit button: Enter in the field means yes
  dialog.querySelector("form").onsubmit = async (event) => {
    event.preventDefault();
    const accepted = await told(error, async () => {
      await accept();
      return true;
    });
    if (accepted) dialog.close("yes");
    else field.focus();
  };
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}

// A list of classes to choose from, with a new one at its end; `chosen` gets the name.
export function classChoice(title, names, chosen) {
  const list = element(
    "select", { "aria-label": title }, element("option", { value: "" }, title),
    ...names.map((name) => element("option", { value: `=${name}` }, name)),
    element("option", { value: "+" }, "a new class …"),
  );
  list.addEventListener("change", async () => {
    const value = list.value;
    list.value = "";
    const name = value === "+" ? await words("What should the new class be called?", "", "Create") : value.slice(1);
    if (name) await chosen(name);
  });
  return list;
}
