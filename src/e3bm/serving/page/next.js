// Which of the photos that were asked about would teach the classifier most, and why.

import { percent } from "./elements.js";

const MOST = 3;
const SURE = 0.5; // between the best two classes; beyond it there is little to learn

// The least sure first; of photos that hesitate between the same two classes, only one, until it has an answer.
export function worthLabelling(answers) {
  const open = answers.filter((one) => !one.taught && !one.learning).map((answer) => ({ answer, ...doubt(answer.prediction) }));
  const found = open.filter((one) => one.sureness < SURE).sort((one, other) => one.sureness - other.sureness);
  const reasons = new Set();
  return found.filter(({ about }) => !reasons.has(about) && reasons.add(about)).slice(0, MOST);
}

function doubt({ probabilities, label, unknown }) {
  const [[first, most], [second, next]] = Object.entries(probabilities).sort((one, other) => other[1] - one[1]);
  if (unknown) {
    return { sureness: -1, about: `none ${label}`, likely: [first],
      reason: `looks like none of the classes; the nearest is ${label}` };
  }
  return { sureness: most - next, about: [first, second].sort().join("\n"), likely: [first, second],
    reason: `could be ${first} (${percent(most)}) or ${second} (${percent(next)})` };
}
