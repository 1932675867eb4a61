// Draws what /status.json says, every two seconds. Everything a device says is set as text, never as markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const place = (id) => document.getElementById(id);
let shown = "";

function make(tag, text, name) {
  const element = document.createElement(tag);
  if (text !== undefined && text !== null) element.textContent = String(text);
  if (name) element.className = name;
  return element;
}

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  if (text !== undefined) element.textContent = text;
  return element;
}

const percent = (share) => (typeof share === "number" ? `${Math.round(100 * share)} %` : "–");
const count = (value) => (typeof value === "number" ? String(value) : "–");

function bytes(value) {
  if (typeof value !== "number") return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let k = 0;
  while (value >= 1024 && k < units.length - 1) { value /= 1024; k += 1; }
  return `${value.toFixed(k && value < 10 ? 1 : 0)} ${units[k]}`;
}

function clock(seconds) {
  if (typeof seconds !== "number") return "";
  const date = new Date(1000 * seconds);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleString();
}

// Rows are lists of cells; a cell is [text, class].
function fill(table, heads, rows, none) {
  if (!rows.length) {
    table.replaceChildren(make("caption", none, "quiet"));
    return;
  }
  const top = make("tr");
  for (const [text, name] of heads) {
    const cell = make("th", text, name === "n" ? "n" : "");
    cell.scope = "col";
    top.append(cell);
  }
  const head = make("thead");
  head.append(top);
  const body = make("tbody");
  for (const cells of rows) {
    const row = make("tr");
    for (const [text, name] of cells) row.append(make("td", text, name));
    body.append(row);
  }
  table.replaceChildren(head, body);
}

function showHead(seen) {
  const finished = seen.doing === "finished";
  const stopped = seen.doing === "not running";
  const silent = seen.age > 15 && !finished && !stopped;
  const state = place("state");
  place("title").textContent = `Fleet: round ${seen.round ?? "?"} of ${seen.rounds ?? "?"}`;
  state.className = silent || stopped ? "alert" : "";
  state.textContent = silent ? `The server has been silent for ${Math.round(seen.age)} s; it was last ${seen.doing}.`
    : `The server is ${finished ? "done" : seen.doing}.`;
  place("why").hidden = !seen.why;
  place("why").textContent = seen.why ?? "";
  document.title = `${seen.round ?? "?"}/${seen.rounds ?? "?"} fedctta fleet`;
}

function showFacts(seen) {
  const nodes = seen.nodes ?? [], last = (seen.history ?? []).at(-1), broken = seen.audit.breaks.length;
  const online = nodes.filter((node) => node.online && !node.ignored).length;
  const all = new Set([...nodes.map((node) => node.device), ...(seen.expected ?? [])]).size;
  const alarms = nodes.reduce((sum, node) => sum + (node.health?.alarms ?? 0), 0);
  const facts = [
    ["devices online", `${online} of ${all}`, online < all ? "alert" : ""],
    ["last round", last ? `${last.seconds.toFixed(1)} s, ${last.uploads} uploads` : "–"],
    ["from devices", bytes(seen.bytes_up)],
    ["to devices", bytes(seen.bytes_down)],
    ["refused", count(seen.refused), seen.refused ? "alert" : ""],
    ["alarms", count(alarms), alarms ? "alert" : ""],
    ["methods", `${seen.method?.adapter ?? "?"}, ${seen.method?.aggregator ?? "?"}`],
    ["audit log", broken ? `broken at line ${seen.audit.breaks[0].line}` : `whole, ${seen.audit.lines} lines`, broken ? "alert" : "fine"],
  ];
  place("facts").replaceChildren(...facts.map(([term, text, name]) => {
    const pair = make("div");
    pair.append(make("dt", term), make("dd", text, name));
    return pair;
  }));
}

function showDevices(seen) {
  const heads = [["device"], ["state"], ["answers"], ["estimated", "n"], ["source model", "n"], ["alarms", "n"],
    ["skipped", "n"], ["domain", "n"], ["has met", "n"], ["last round", "n"], ["refused", "n"], ["version"]];
  const rows = (seen.nodes ?? []).map((node) => {
    const health = node.health ?? {}, domains = node.domains ?? [], facts = node.facts ?? {};
    const other = facts.version && facts.version !== seen.versions?.fedctta;
    const state = node.ignored ? ["in quarantine", "alert"] : node.online ? ["online", "fine"]
      : [node.silence ? "does not answer" : "offline", "alert"];
    return [
      [node.device, "name"], state, [health.answers ?? "–", health.answers === "source" ? "alert" : ""],
      [percent(health.accuracy), "n"], [percent(health.source_accuracy), "n"],
      [count(health.alarms), health.alarms ? "n alert" : "n"], [count(health.skipped), "n"],
      [domains.length ? domains[0] : "–", "n"], [domains.length || "–", "n"], [count(node.last_round), "n"],
      [count(node.refused), node.refused ? "n alert" : "n"], [facts.version ?? "–", other ? "alert" : "quiet"],
    ];
  });
  for (const name of seen.expected ?? []) {
    if (!(seen.nodes ?? []).some((node) => node.device === name)) {
      rows.push([[name, "name"], ["not seen yet", "quiet"], ...Array.from({ length: 10 }, () => ["", ""])]);
    }
  }
  fill(place("devices"), heads, rows, "No device has joined yet.");
}

function chart(title, lines, value, text) {
  const figure = make("div"), width = 400, height = 100, floor = height - 1;
  const most = Math.max(...lines.map(value), 1e-9), step = (width - 4) / Math.max(lines.length, 20);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
  svg.append(draw("line", { x1: 0, x2: width, y1: floor, y2: floor }));
  lines.forEach((line, k) => {
    const tall = Math.max(1, (floor - 4) * (value(line) / most));
    const bar = draw("rect", { x: 2 + k * step, y: floor - tall, width: Math.max(0.5, 0.8 * step), height: tall });
    bar.append(draw("title", {}, `round ${line.round}: ${text(value(line))}`));
    svg.append(bar);
  });
  figure.append(make("h3", title), svg);
  if (lines.length) figure.append(make("div", `rounds ${lines[0].round} to ${lines.at(-1).round}; most: ${text(most)}`, "note"));
  return figure;
}

function showRounds(seen) {
  const lines = seen.history ?? [];
  if (!lines.length) {
    place("rounds").replaceChildren(make("p", "No round is closed yet.", "quiet"));
    return;
  }
  place("rounds").replaceChildren(
    chart("Seconds per round", lines, (line) => line.seconds, (value) => `${value.toFixed(1)} s`),
    chart("Uploads per round", lines, (line) => line.uploads, (value) => `${Math.round(value)}`),
    chart("Bytes per round", lines, (line) => line.bytes_up + line.bytes_down, bytes),
  );
}

function showWeights(seen) {
  const found = seen.collaboration, note = place("weights-note"), box = place("weights");
  box.replaceChildren();
  if (!found) { note.textContent = "There is no W yet."; return; }
  if (!found.weights) { note.textContent = `W of ${found.names.length} devices is too large to be drawn.`; return; }
  note.textContent = `W of round ${found.round}: how much of what the device of a row receives comes from that of a column.`;
  const n = found.names.length, cell = n > 24 ? 14 : 26, left = 110, top = 16, style = getComputedStyle(document.documentElement);
  const [low, high] = ["--heat-low", "--heat-high"].map((name) => style.getPropertyValue(name).split(",").map(Number));
  const svg = draw("svg", { width: left + n * cell + 8, height: top + n * cell + 8, role: "img", "aria-label": "W" });
  const most = Math.max(...found.weights.flat(), 1e-9);
  found.weights.forEach((row, i) => {
    const name = found.names[i];
    const label = draw("text", { x: left - 8, y: top + (i + 0.68) * cell, "text-anchor": "end" }, `${name.length > 13 ? `${name.slice(0, 12)}…` : name} ${i}`);
    label.append(draw("title", {}, name));
    svg.append(label, draw("text", { x: left + (i + 0.5) * cell, y: top - 5, "text-anchor": "middle" }, n > 24 && i % 5 ? "" : String(i)));
    row.forEach((weight, j) => {
      const share = Math.max(0, weight) / most;
      const colour = low.map((from, k) => Math.round(from + share * (high[k] - from)));
      const square = draw("rect", { x: left + j * cell, y: top + i * cell, width: cell - 1, height: cell - 1, fill: `rgb(${colour})` });
      square.append(draw("title", {}, `${name} from ${found.names[j]}: ${weight.toFixed(3)}`));
      svg.append(square);
    });
  });
  box.append(svg);
}

function showRefusals(seen) {
  const rows = seen.refusals.map((line) => [
    [clock(line.time), "quiet"], [count(line.round), "n"], [line.device ?? `node ${line.node}`, "name"],
    [line.reason, "text"], [line.quarantined ? "in quarantine" : "", "alert"],
  ]);
  fill(place("refusals"), [["time"], ["round", "n"], ["who"], ["reason"], [""]], rows, "Nothing was refused.");
}

function showAudit(seen) {
  const { lines, breaks, latest } = seen.audit;
  const note = place("audit-note");
  note.className = breaks.length ? "note alert" : "note";
  note.textContent = breaks.length ? breaks.map((found) => `Line ${found.line} ${found.what}.`).join(" ")
    : `All ${lines} lines are as they were written. fedctta fleet audit checks them again.`;
  const own = ["number", "time", "event", "before", "device", "node"];
  const rows = latest.map((line) => {
    const rest = Object.entries(line).filter(([key]) => !own.includes(key));
    const text = rest.map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
    return [[count(line.number), "n quiet"], [clock(line.time), "quiet"], [line.event, ""],
      [line.device ?? (line.node ? `node ${line.node}` : ""), "name"], [text.length > 300 ? `${text.slice(0, 300)}…` : text, "text"]];
  });
  fill(place("audit"), [["line", "n"], ["time"], ["event"], ["who"], ["facts"]], rows, "Nothing was recorded yet.");
}

function show(seen) {
  showHead(seen);
  const { age, ...rest } = seen;
  const text = JSON.stringify(rest);
  if (text === shown) return;
  shown = text;
  for (const part of [showFacts, showDevices, showRounds, showWeights, showRefusals, showAudit]) part(seen);
  const versions = Object.entries(seen.versions ?? {}).map(([name, version]) => `${name} ${version}`).join(" · ");
  place("versions").textContent = [versions, seen.method?.dataset, seen.method?.model, seen.run ? `run ${seen.run}` : ""].filter(Boolean).join(" · ");
}

async function look() {
  try {
    const answer = await fetch("/status.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    show(await answer.json());
  } catch (error) {
    place("state").className = "alert";
    place("state").textContent = "fedctta fleet watch cannot be reached: what you see is old.";
  } finally {
    setTimeout(look, 2000);
  }
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { shown = ""; });
look();
