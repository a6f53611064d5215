"use strict";
// Charts of the process's own counters. They are SVG, made of attributes and text only.

const wide = 220, high = 48;

// charts are the title, the unit, and the value of an interval.
const charts = [
  ["Runs", "/s", (p, step) => p.runs / step],
  ["Replays", "/s", (p, step) => p.replays / step],
  ["Conflicts", "/s", (p, step) => p.conflicts / step],
  ["Marked unknown", "", (p) => p.unknown],
  ["Failed store calls", "", (p) => p.failures],
  ["Mean duration", " ms", (p) => p.took_ms],
  ["Jobs that wait", "", (p) => p.waiting ?? null],
];

function shape(name, attributes) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  return e;
}

const round = (n) => (n >= 100 ? Math.round(n) : Math.round(n * 100) / 100);

// chart draws the values of one line. Intervals without a value are left out.
function chart([title, unit, value], points, step) {
  const values = points.map((p) => value(p, step));
  const most = Math.max(0, ...values.filter((v) => v !== null));
  const known = values.filter((v) => v !== null), now = known.length ? round(known[known.length - 1]) + unit : "–";
  const figure = document.createElement("figure");
  const caption = make("figcaption", title + " ");
  caption.append(make("strong", now));
  const svg = shape("svg", { viewBox: "0 0 " + wide + " " + high, role: "img", "aria-label": title + ": now " + now + ", at most " + round(most) + unit + " in half an hour" });
  const line = values.map((v, i) => (v === null ? "" : (i * wide / Math.max(1, values.length - 1)).toFixed(1) + "," + (high - 2 - (most ? v / most : 0) * (high - 6)).toFixed(1))).filter(Boolean);
  if (line.length) svg.append(shape("polyline", { points: line.join(" "), class: "line" }));
  figure.append(caption, svg, make("small", "at most " + round(most) + unit));
  return figure;
}

async function draw() {
  const { step_seconds: step, points } = await call("GET", "v1/activity");
  el("activity").hidden = points.length === 0;
  el("charts").replaceChildren(...charts.map((c) => chart(c, points, step)));
}
