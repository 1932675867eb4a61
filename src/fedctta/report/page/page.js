"use strict";
// Shared by all charts: the data, small builders, one tooltip, and what is shown at present.
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const state = { column: 0, hidden: new Set(), redraw: [] };

function put(parent, tag, attributes = {}, text) {
  const made = document.createElementNS(parent.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return parent.appendChild(made);
}

function unpack(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

function words(domain) {
  return domain.replaceAll("_", " ");
}

function domainColour(k, count) {
  return `hsl(${Math.round((360 * k) / count)} 52% ${k % 2 ? 42 : 64}%)`;
}

function paintSwatch(swatch, label) {
  const pen = data.pens[label];
  if (pen) swatch.style.borderTop = `3px ${pen.dashed ? "dotted" : "solid"} ${pen.colour}`;
}

function shown(column) {
  return Object.keys(column.curves).filter((label) => !state.hidden.has(label));
}

function ticks(low, high, count) {
  const rough = (high - low || 1) / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(Math.ceil(high / step - 1e-9), first + 1);
  return Array.from({ length: last - first + 1 }, (_, k) => Number(((first + k) * step).toFixed(6)));
}

// Marks around accuracies; values that hardly differ still get an axis of a few points.
function percentTicks(values, count) {
  if (!values.length) return [0, 50, 100];
  const low = Math.min(...values), high = Math.max(...values), pad = Math.max(0, 4 - (high - low)) / 2;
  return ticks(Math.max(0, low - pad), Math.min(100, high + pad), count);
}

// The tooltip: a first line of context, then [label, value, method?] lines. Screen readers hear the same words.
function tell(x, y, title, lines) {
  const tip = $("tip");
  tip.replaceChildren();
  put(tip, "div", {}, title);
  for (const [label, value, method] of lines) {
    const line = put(tip, "div");
    if (method) paintSwatch(put(line, "span", { class: "swatch" }), method);
    put(line, "span", {}, label);
    put(line, "b", {}, value);
  }
  tip.hidden = false;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, x + 16 > room ? x - tip.offsetWidth - 16 : x + 16)}px`;
  tip.style.top = `${y + 12}px`;
}

function speak(title, lines) {
  $("spoken").textContent = `${title}: ${lines.map(([label, value]) => `${label} ${value}`).join(", ")}`;
}

function hush() {
  $("tip").hidden = true;
}

function ranked(labels, valueOf) {
  return labels
    .map((label) => [label, valueOf(label)])
    .filter(([, value]) => value !== null && value !== undefined)
    .sort((a, b) => b[1] - a[1])
    .map(([label, value]) => [label, value.toFixed(1), label]);
}

function fill(select, names) {
  select.replaceChildren();
  names.forEach((name, k) => put(select, "option", { value: k }, name));
}

function drawLegend() {
  const legend = $("legend");
  legend.replaceChildren();
  for (const label of Object.keys(data.columns[state.column].curves)) {
    const button = put(legend, "button", { type: "button", "aria-pressed": !state.hidden.has(label) });
    paintSwatch(put(button, "span", { class: "swatch" }), label);
    put(button, "span", {}, label);
    button.addEventListener("click", () => {
      if (!state.hidden.delete(label)) state.hidden.add(label);
      button.setAttribute("aria-pressed", !state.hidden.has(label));
      redraw();
    });
  }
}

function redraw() {
  hush();
  state.redraw.forEach((draw) => draw());
}

document.querySelectorAll(".swatch").forEach((swatch) => paintSwatch(swatch, swatch.dataset.method));
fill($("setting"), data.columns.map((column) => column.name));
$("setting-label").hidden = data.columns.length < 2;
drawLegend();
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("load", redraw);
addEventListener("keydown", (event) => event.key === "Escape" && hush());
