// Accuracy by domain: one row a domain, one dot a method.
const dots = { row: -1 };

function drawDots() {
  const svg = $("dots");
  const column = data.columns[state.column];
  const labels = shown(column);
  const width = svg.clientWidth, step = 26, left = Math.min(150, width * 0.32), right = width - 16;
  const top = 4, bottom = top + step * column.met.length, height = bottom + 20;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);

  const values = labels.flatMap((label) => column.byDomain[label]).filter((value) => value !== null);
  const marks = percentTicks(values, 7);
  const low = marks[0], high = marks[marks.length - 1];
  const x = (value) => left + ((right - left) * (value - low)) / (high - low);
  dots.cursor = put(svg, "rect", { class: "row", x: 0, y: -100, width, height: step, rx: 4 });
  for (const mark of marks) {
    put(svg, "line", { class: "rule", x1: x(mark), x2: x(mark), y1: top, y2: bottom });
    put(svg, "text", { x: x(mark), y: bottom + 15, "text-anchor": "middle" }, `${mark}%`);
  }
  column.met.forEach((domain, k) => {
    const y = top + step * (k + 0.5);
    put(svg, "text", { x: 4, y: y + 4 }, words(domain));
    const here = labels.map((label) => column.byDomain[label][k]).filter((value) => value !== null);
    if (here.length > 1)
      put(svg, "line", { class: "cross", x1: x(Math.min(...here)), x2: x(Math.max(...here)), y1: y, y2: y });
    for (const label of labels) {
      const value = column.byDomain[label][k], pen = data.pens[label];
      if (value === null) continue;
      const fill = pen.dashed ? "var(--ground)" : pen.colour;
      const cy = y + step * column.aside[label][k];
      put(svg, "circle", { cx: x(value), cy, r: 4.8, fill, stroke: pen.dashed ? pen.colour : "var(--ground)", "stroke-width": pen.dashed ? 2 : 1 });
    }
  });
  dots.frame = { column, labels, top, step };
}

function readDots(row, across, speaking) {
  const { column, labels, top, step } = dots.frame;
  dots.row = Math.max(0, Math.min(column.met.length - 1, row));
  dots.cursor.setAttribute("y", top + step * dots.row);
  const found = ranked(labels, (label) => column.byDomain[label][dots.row]);
  const box = $("dots").getBoundingClientRect();
  const title = words(column.met[dots.row] ?? "");
  tell(across, box.top + scrollY + top + step * (dots.row + 0.7), title, found);
  if (speaking) speak(title, found);
}

function leaveDots() {
  dots.cursor?.setAttribute("y", -100);
  hush();
}

$("dots").addEventListener("pointermove", (event) => {
  const y = event.clientY - $("dots").getBoundingClientRect().top;
  readDots(Math.floor((y - dots.frame.top) / dots.frame.step), event.pageX);
});
$("dots").addEventListener("pointerleave", leaveDots);
$("dots").addEventListener("blur", leaveDots);
$("dots").addEventListener("keydown", (event) => {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const box = $("dots").getBoundingClientRect();
  readDots(dots.row + step, box.left + scrollX + box.width / 3, true);
});
state.redraw.push(drawDots);
