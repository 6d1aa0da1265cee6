// What the classifier says of a photo: probabilities as bars, "none of these", and the photos that mattered.

import { element, percent } from "./elements.js";
import { picture, pictureOf } from "./photos.js";

const MOST_BARS = 6;
const MOST_SHOWN = 6;

export function answerCard(prediction, url) {
  const ranked = Object.entries(prediction.probabilities).sort((one, other) => other[1] - one[1]);
  const bars = ranked.slice(0, MOST_BARS).map(([name, share]) => bar(name, share));
  if (ranked.length > MOST_BARS) {
    const rest = ranked.slice(MOST_BARS).reduce((sum, [, share]) => sum + share, 0);
    bars.push(bar(`${ranked.length - MOST_BARS} other classes`, rest));
  }
  const card = element(
    "li", { class: "card answer" },
    picture(url, `The photo ${prediction.name}`, "?"),
    element("div", {}, verdict(prediction), element("ul", { class: "bars" }, ...bars)),
  );
  if (prediction.influences.length) card.append(mattered(prediction.influences, prediction.label));
  return card;
}

export function spoken(prediction) {
  const best = `${prediction.label}, ${percent(prediction.probabilities[prediction.label])}`;
  return prediction.unknown ? `None of these; the nearest is ${best}.` : `${best}.`;
}

function verdict(prediction) {
  const parts = prediction.unknown
    ? [element("span", { class: "unknown" }, "None of these"), `nearest: ${prediction.label}`]
    : [element("strong", {}, prediction.label)];
  const doubt = prediction.disagreement < 0.1 ? "the epochs agree" : `the epochs disagree (${prediction.disagreement.toFixed(2)})`;
  return element("p", { class: "verdict" }, ...parts, element("span", { class: "hint" }, doubt));
}

function bar(name, share) {
  const fill = element("div", { class: "fill" });
  fill.style.width = `${100 * share}%`;
  return element(
    "li", {},
    element("span", { class: "name" }, name), element("span", { class: "percent" }, percent(share)),
    element("div", { class: "track", "aria-hidden": "true" }, fill),
  );
}

function mattered(influences, label) {
  const shown = influences.slice(0, MOST_SHOWN).map(({ photo, class_name: name, weight }) => {
    const side = weight >= 0 ? "for" : "against";
    const description = `a photo of ${name}, speaks ${side} ${label}`;
    return element(
      "figure", { class: side, title: description },
      pictureOf(photo, description, side === "for" ? "+" : "−"), element("figcaption", {}, name),
    );
  });
  return element("div", { class: "mattered" }, element("span", {}, `What mattered most for “${label}”`), ...shown);
}
