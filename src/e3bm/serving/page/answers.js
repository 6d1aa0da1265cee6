// What the classifier says of a photo: probabilities as bars, "none of these", and the photos that mattered.

import { breakable, button, classChoice, element, percent } from "./elements.js";
import { enlarge, kindOf, picture, pictureOf } from "./pictures.js";
import { now, photoWords } from "./state.js";

const MOST_BARS = 3;
const MOST_SHOWN = 6;

// The card of an answer, or its new content after the photo was asked about again.
export function showAnswer(answer, teach) {
  const { prediction, file, url } = answer;
  const look = button(picture(url, "", kindOf(file)), () => enlarge(file, url, file.name), {
    class: "look", "aria-label": `Enlarge ${file.name}`,
  });
  const former = answer.version !== now.workspace.model?.version;
  answer.card ??= element("li", { class: "card answer" });
  answer.card.classList.toggle("former", former);
  const ranked = Object.entries(prediction.probabilities).sort((one, other) => other[1] - one[1]);
  const bars = ranked.slice(0, MOST_BARS).map(([name, share]) => bar(name, share));
  if (ranked.length > MOST_BARS) {
    const rest = ranked.slice(MOST_BARS).reduce((sum, [, share]) => sum + share, 0);
    bars.push(bar(ranked.length === MOST_BARS + 1 ? ranked.at(-1)[0] : `${ranked.length - MOST_BARS} other classes`, rest));
  }
  const body = element("div", {}, verdict(prediction), element("p", { class: "file" }, file.name));
  if (former) body.append(element("p", { class: "mark" }, "Answer from an earlier fit"));
  if (answer.taught) body.append(element("p", { class: "taught" }, `You said: ${answer.taught}`));
  else if (answer.learning) body.append(element("p", { class: "taught" }, `Learning: ${answer.learning} …`));
  if (answer.problem) body.append(element("p", { class: "error", role: "alert" }, answer.problem));
  body.append(element("ul", { class: "bars" }, ...bars));
  if (!now.workspace.unchangeable && !answer.taught && !answer.learning) body.append(correction(answer, teach));
  const open = answer.card.querySelector("details")?.open ?? answer.alone;
  answer.card.replaceChildren(look, body);
  if (prediction.influences.length) answer.card.append(mattered(prediction.influences, prediction.label, open));
  return answer.card;
}

// The same answer after classes were renamed.
export function inNewNames(prediction, names) {
  const called = (name) => names.get(name) ?? name;
  return {
    ...prediction, label: called(prediction.label),
    probabilities: Object.fromEntries(Object.entries(prediction.probabilities).map(([name, share]) => [called(name), share])),
    influences: prediction.influences.map((one) => ({ ...one, class_name: called(one.class_name) })),
  };
}

export function spoken(prediction) {
  const best = `${prediction.label}, ${percent(prediction.probabilities[prediction.label])}`;
  return prediction.unknown ? `None of these; the nearest is ${best}.` : `${best}.`;
}

// "Yes" and "no, it is …": either way the photo is added to a class, and the classifier learns from it.
function correction(answer, teach) {
  const { label } = answer.prediction;
  const others = now.workspace.classes.map((one) => one.name).filter((name) => name !== label);
  return element(
    "div", { class: "correction" },
    button("Correct – add it", () => teach(answer, label), { class: "small", "aria-label": `Correct – add it: ${answer.file.name} is ${label}` }),
    classChoice("No, it is …", others, (name) => teach(answer, name)),
  );
}

function verdict(prediction) {
  const parts = prediction.unknown
    ? [element("span", { class: "unknown" }, "None of these"), `nearest: ${prediction.label}`]
    : [element("strong", {}, ...breakable(prediction.label))];
  const doubt = prediction.disagreement < 0.1 ? "the epochs agree" : `the epochs disagree (${prediction.disagreement.toFixed(2)})`;
  return element("p", { class: "verdict" }, ...parts, element("span", { class: "hint research-only" }, doubt));
}

function bar(name, share) {
  const fill = element("div", { class: "fill" });
  fill.style.width = `${100 * share}%`;
  return element(
    "li", {}, element("span", { class: "name" }, ...breakable(name)),
    element("div", { class: "track", "aria-hidden": "true" }, fill), element("span", { class: "percent" }, percent(share)),
  );
}

function mattered(influences, label, open) {
  const known = photoWords();
  const shown = influences.slice(0, MOST_SHOWN).map(({ photo, class_name: name, weight }) => {
    const side = weight >= 0 ? "for" : "against", { words: which, number } = known.get(photo) ?? { words: `a photo of ${name}`, number: "" };
    const description = `${which} counts ${side} ${label}`;
    return element(
      "figure", { class: side, title: description },
      pictureOf(photo, description, number), element("figcaption", {}, ...breakable(which)),
    );
  });
  return element(
    "details", { class: "mattered", open }, element("summary", {}, `What mattered most for “${label}”`),
    element("div", { class: "figures" }, ...shown),
    element("p", { class: "hint" }, "Solid frame: counts for it; dashed frame: counts against it."),
  );
}
