// alpha_m and v_m, a bar for each epoch.

import { element } from "./elements.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300, HEIGHT = 150, LEFT = 44, RIGHT = 6, TOP = 10, BOTTOM = 24;

export function showEpochs(charts, table, rates, votes) {
  charts.replaceChildren(
    chart("α, the step of each epoch", "alpha", rates),
    chart("v, the vote of each epoch", "v", votes),
  );
  const head = element("tr", {}, ...["epoch", "α", "v"].map((word) => element("th", { scope: "col" }, word)));
  const rows = rates.map((rate, epoch) => element(
    "tr", {}, element("th", { scope: "row" }, String(epoch + 1)),
    element("td", {}, short(rate)), element("td", {}, short(votes[epoch])),
  ));
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
}

function chart(title, name, values) {
  const low = Math.min(0, ...values), high = Math.max(0, ...values), span = high - low || 1;
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / span);
  const step = (WIDTH - LEFT - RIGHT) / values.length;
  const drawing = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": described(name, values) });
  for (const value of new Set([low, 0, high])) {
    drawing.append(
      shape("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      words(short(value), LEFT - 6, y(value) + 4, "end"),
    );
  }
  values.forEach((value, epoch) => {
    const bar = shape("rect", {
      class: "bar", x: LEFT + step * (epoch + 0.15), width: 0.7 * step, rx: Math.min(3, step / 5),
      y: Math.min(y(value), y(0)), height: Math.max(Math.abs(y(value) - y(0)), 0.5),
    });
    const told = shape("title", {});
    told.textContent = `epoch ${epoch + 1}: ${short(value)}`;
    bar.append(told);
    drawing.append(bar);
    if (shown(epoch, values.length)) {
      drawing.append(words(String(epoch + 1), LEFT + step * (epoch + 0.5), HEIGHT - 8, "middle"));
    }
  });
  return element("figure", {}, element("figcaption", {}, title), drawing);
}

function shown(epoch, count) {
  return epoch === 0 || (epoch + 1) % Math.max(1, Math.ceil(count / 12)) === 0;
}

function described(name, values) {
  const best = values.indexOf(Math.max(...values));
  return `Bars of ${name} for ${values.length} epochs; the largest, ${short(values[best])}, belongs to epoch ${best + 1}.`;
}

function short(value) {
  return value === 0 ? "0" : Math.abs(value) >= 0.001 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
}

function words(text, x, y, anchor) {
  const made = shape("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}

function shape(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
