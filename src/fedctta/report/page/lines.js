// Accuracy over time: one line a method, and the domains a chosen group of clients walks through.
const MANY_SHIFTS = 60;
const lines = { index: -1 };

function chooseGroups() {
  const names = data.columns[state.column].groups.map((group) => group.name);
  fill($("group"), [...names, "nobody (hide)"]);
}

function domainAt(group, round) {
  if (!group) return null;
  const begun = group.stretches.filter(([start]) => start <= round);
  return begun.length ? begun[begun.length - 1][1] : null;
}

function drawLines() {
  const svg = $("lines");
  const column = data.columns[state.column];
  const labels = shown(column);
  const group = column.groups[$("group").value];
  const width = svg.clientWidth, height = 330;
  const left = 38, right = width - 10, top = group ? 30 : 10, bottom = height - 34;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);

  const values = labels.flatMap((label) => column.curves[label]).filter((value) => value !== null);
  const marks = percentTicks(values, 5);
  const low = marks[0], high = marks[marks.length - 1];
  const last = Math.max(1, column.rounds - 1);
  const x = (round) => left + ((right - left) * round) / last;
  const y = (value) => bottom - ((bottom - top) * (value - low)) / (high - low);

  for (const mark of marks) {
    put(svg, "line", { class: "rule", x1: left, x2: right, y1: y(mark), y2: y(mark) });
    put(svg, "text", { x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, `${mark}%`);
  }
  for (const mark of ticks(1, column.rounds, 8).filter((m) => m >= 1 && m <= column.rounds && Number.isInteger(m)))
    put(svg, "text", { x: x(mark - 1), y: bottom + 16, "text-anchor": "middle" }, mark);
  put(svg, "text", { x: right, y: height - 4, "text-anchor": "end" }, "round");
  if (group) drawStretches(svg, column, group, x, top, bottom, right);

  for (const label of labels) {
    const pen = data.pens[label];
    const style = { fill: "none", stroke: pen.colour, "stroke-width": 1.8, "stroke-linejoin": "round" };
    const group = (column.together.find((found) => found.includes(label)) ?? []).filter((l) => labels.includes(l));
    const place = group.indexOf(label);
    if (group.length > 1) {
      // Curves that lie on one another: the first is whole, the others leave gaps for it and for one another.
      if (place) style["stroke-dasharray"] = `7 ${7 * (group.length - 1)}`;
      style["stroke-dashoffset"] = -7 * place;
    } else if (pen.dashed) style["stroke-dasharray"] = "5 3";
    put(svg, "path", { ...style, d: pathOf(column.at, column.curves[label], x, y) });
    const points = column.curves[label].length;
    if (points === 1 && column.curves[label][0] !== null)
      put(svg, "circle", { cx: x(0), cy: y(column.curves[label][0]), r: 4, fill: pen.colour });
  }
  $("same").textContent = column.coincidence ? `In one line: ${column.coincidence}. ` : "";
  lines.cursor = put(svg, "g");
  lines.frame = { column, labels, group, x, y, top, bottom };
}

function pathOf(rounds, values, x, y) {
  let broken = true;
  return values
    .map((value, k) => {
      if (value === null) return (broken = true), "";
      const step = `${broken ? "M" : "L"}${x(rounds[k]).toFixed(1)} ${y(value).toFixed(1)}`;
      broken = false;
      return step;
    })
    .join("");
}

function drawStretches(svg, column, group, x, top, bottom, right) {
  const many = group.stretches.length > MANY_SHIFTS;
  group.stretches.forEach(([start, domain], k) => {
    const from = x(Math.max(0, start - 0.5)); // between the last round of one domain and the first of the next
    const to = k + 1 < group.stretches.length ? x(group.stretches[k + 1][0] - 0.5) : right;
    if (domain < 0) return;
    const colour = domainColour(domain, column.domains.length);
    put(svg, "rect", { x: from, y: top - 12, width: Math.max(0.5, to - from - (many ? 0 : 1)), height: 4, fill: colour });
    if (k && !many) put(svg, "line", { class: "shift", x1: from, x2: from, y1: top - 8, y2: bottom });
    const full = words(column.domains[domain]);
    if (!many) nameStretch(svg, [full, full.split(" ")[0]], from, top - 17, to - from - 4);
  });
}

function nameStretch(svg, names, x, y, room) {
  for (const name of names) {
    const text = put(svg, "text", { x, y }, name);
    if (text.getComputedTextLength() <= room) return;
    text.remove();
  }
}

function readLines(index, speaking) {
  const { column, labels, group, x, y, top, bottom } = lines.frame;
  lines.index = Math.max(0, Math.min(column.at.length - 1, index));
  const round = column.at[lines.index];
  const cursor = lines.cursor;
  cursor.replaceChildren();
  put(cursor, "line", { class: "cross", x1: x(round), x2: x(round), y1: top, y2: bottom });
  for (const label of labels) {
    const value = column.curves[label][lines.index];
    if (value !== null) put(cursor, "circle", { cx: x(round), cy: y(value), r: 3.5, fill: data.pens[label].colour });
  }
  const domain = domainAt(group, round);
  const place = domain === null || domain < 0 ? "" : `, ${words(column.domains[domain])}`;
  const found = ranked(labels, (label) => column.curves[label][lines.index]);
  const box = $("lines").getBoundingClientRect();
  tell(box.left + scrollX + x(round), box.top + scrollY + top, `round ${round + 1}${place}`, found);
  if (speaking) speak(`round ${round + 1}${place}`, found);
}

function leaveLines() {
  lines.cursor?.replaceChildren();
  hush();
}

$("lines").addEventListener("pointermove", (event) => {
  const { column, x } = lines.frame;
  const at = event.clientX - $("lines").getBoundingClientRect().left;
  const distance = (k) => Math.abs(x(column.at[k]) - at);
  readLines(column.at.reduce((best, _, k) => (distance(k) < distance(best) ? k : best), 0));
});
$("lines").addEventListener("pointerleave", leaveLines);
$("lines").addEventListener("blur", leaveLines);
$("lines").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -Infinity, End: Infinity }[event.key];
  if (step === undefined) return;
  event.preventDefault();
  readLines(Math.max(0, lines.index) + step, true);
});
$("group").addEventListener("change", redraw);
$("setting").addEventListener("change", () => {
  state.column = Number($("setting").value);
  lines.index = -1;
  chooseGroups();
  drawLegend();
  redraw();
});
chooseGroups();
state.redraw.push(drawLines);
