"use strict";
// Texts of messages reach the page as text nodes and attributes only, never as HTML.

const $ = (id) => document.getElementById(id);

function el(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

function svg(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Keep an element for each key, so that a new state takes the focus from nothing.
function keyed(list, items, key, make) {
  const known = new Map([...list.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    let child = known.get(key(item));
    known.delete(key(item));
    if (!child) {
      child = make(item);
      child.dataset.key = key(item);
    }
    if (list.children[index] !== child) list.insertBefore(child, list.children[index] || null);
    child.show(item);
  });
  known.forEach((child) => child.remove());
}

function spark(values, label) {
  const drawing = svg("svg", { class: "spark", viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img" });
  const line = svg("polyline", { class: "line" });
  const area = svg("polygon", { class: "area" });
  drawing.append(area, line);
  drawing.show = (points) => {
    const top = Math.max(...points, 1e-9);
    const step = 100 / Math.max(points.length - 1, 1);
    const places = points.map((value, at) => `${(at * step).toFixed(2)},${(38 - (36 * value) / top).toFixed(2)}`);
    if (places.length === 1) places.push(`100,${places[0].split(",")[1]}`);
    line.setAttribute("points", places.join(" "));
    area.setAttribute("points", places.length ? `0,40 ${places.join(" ")} 100,40` : "");
    drawing.setAttribute("aria-label", label(points));
  };
  drawing.show(values);
  return drawing;
}

function facts(list, pairs) {
  list.replaceChildren(...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(
    ([name, value]) => el("div", null, el("dt", { textContent: name }), el("dd", { textContent: value }))));
}

const numbers = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const number = (value) => numbers.format(value);
const counted = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

function lasting(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${number(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

function bytes(count) {
  if (count < 1000) return counted(count, "byte");
  if (count < 1e6) return `${number(count / 1e3)} kB`;
  return `${number(count / 1e6)} MB`;
}

const moment = (text) => new Date(text).toLocaleString("sv-SE");
