// The collaboration matrix of one run: a slider over rounds, a play button, and every client's domain at the edges.
const ABSENT = 255;
const matrix = { playing: null, cell: null };

function openRun() {
  const run = data.matrices[$("run").value];
  matrix.run = run;
  matrix.weights = unpack(run.weights.bytes);
  matrix.mean = unpack(run.mean.bytes);
  matrix.met = unpack(run.met);
  matrix.cell = null;
  $("round").max = run.rounds.length - 1;
  // A run starts at its middle: at the first round most methods know nothing yet.
  $("round").value = Math.floor((run.rounds.length - 1) / 2);
  $("round").disabled = $("play").disabled = run.rounds.length < 2;
  $("domains").replaceChildren();
  run.domains.forEach((domain, k) => {
    const item = put($("domains"), "li");
    put(item, "i").style.background = domainColour(k, run.domains.length);
    put(item, "span", {}, words(domain));
  });
  drawMatrix();
}

// What is on show: weight(i, j), where the scale ends, the domain of each client (ABSENT: away, or no single one), and
// whether it was there: nothing was mixed for one that is away, so its row is struck out.
function view() {
  const { run } = matrix, n = run.clients, k = Number($("round").value);
  const average = $("average").checked;
  const bytes = average ? matrix.mean : matrix.weights.subarray(k * n * n, (k + 1) * n * n);
  const top = (average ? run.mean : run.weights).top;
  const met = average ? new Uint8Array(n).fill(ABSENT) : matrix.met.subarray(k * n, (k + 1) * n);
  const there = (i) => (average ? run.mean.there[i] : met[i] !== ABSENT);
  return { n, k, average, met, there, scale: Math.max(top, run.floor), weight: (i, j) => top * (bytes[i * n + j] / 255) ** 2 };
}

function drawMatrix() {
  if (!matrix.run) return;
  const { run } = matrix, now = view(), { n } = now;
  const canvas = $("matrix"), room = Math.min(500, canvas.parentElement.clientWidth);
  const numbers = (room - 34) / n >= 13, edge = numbers ? 34 : 16;
  const size = Math.max(1, Math.min(60, (room - edge) / n)), side = edge + size * n, sharp = devicePixelRatio || 1;
  canvas.width = canvas.height = Math.round(side * sharp);
  canvas.style.width = canvas.style.height = `${side}px`;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const [from, to] = ["--heat-low", "--heat-high"].map((name) => style.getPropertyValue(name).split(",").map(Number));
  pen.scale(sharp, sharp);
  pen.font = "10px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const gap = size > 6 ? 1 : 0, quiet = style.getPropertyValue("--strong");
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < n; j++) {
      if (!now.there(i)) {
        strike(pen, edge + j * size, edge + i * size, size - gap, quiet);
        continue;
      }
      const share = Math.min(1, now.weight(i, j) / now.scale);
      pen.fillStyle = `rgb(${from.map((low, c) => Math.round(low + share * (to[c] - low))).join(",")})`;
      pen.fillRect(edge + j * size, edge + i * size, size - gap, size - gap);
    }
    if (now.met[i] !== ABSENT) {
      pen.fillStyle = domainColour(now.met[i], run.domains.length);
      pen.fillRect(edge - 10, edge + i * size, 6, size - gap);
      pen.fillRect(edge + i * size, edge - 10, size - gap, 6);
    }
    if (numbers) {
      pen.fillStyle = style.getPropertyValue("--quiet");
      pen.textAlign = "right";
      pen.fillText(i + 1, edge - 14, edge + (i + 0.5) * size);
      pen.textAlign = "center";
      pen.fillText(i + 1, edge + (i + 0.5) * size, edge - 19);
    }
  }
  if (matrix.cell) {
    const [i, j] = matrix.cell;
    pen.strokeStyle = style.getPropertyValue("--ink");
    pen.strokeRect(edge + j * size, edge + i * size, size - gap, size - gap);
  }
  matrix.frame = { edge, size, now };
  describe(now);
}

function strike(pen, x, y, size, colour) {
  pen.strokeStyle = colour;
  pen.beginPath();
  pen.moveTo(x, y + size);
  pen.lineTo(x + size, y);
  pen.stroke();
}

function describe({ k, average, met, scale, weight }) {
  const { run } = matrix;
  $("when").textContent = average ? `mean of ${run.column}` : `round ${run.rounds[k] + 1}, ${run.column}`;
  $("round").setAttribute("aria-valuetext", `round ${run.rounds[k] + 1}`);
  $("top").textContent = scale.toPrecision(2);
  const here = [...met.keys()].filter((i) => met[i] !== ABSENT);
  const within = here.map((i) => here.filter((j) => met[j] === met[i]).reduce((sum, j) => sum + weight(i, j), 0));
  const share = within.reduce((sum, value) => sum + value, 0) / within.length;
  $("within").textContent = here.length ? `weight on clients in the same domain: ${share.toFixed(2)}` : "\u00a0";
  [...$("domains").children].forEach((item, d) => item.classList.toggle("away", !average && !met.includes(d)));
}

function readMatrix(i, j, speaking) {
  const { edge, size, now } = matrix.frame, { run } = matrix;
  matrix.cell = [i, j];
  drawMatrix();
  const who = (c) => `client ${c + 1}${now.met[c] === ABSENT ? "" : ` (${words(run.domains[now.met[c]])})`}`;
  const taking = i === j ? `${who(i)} keeps` : `${who(i)} takes`;
  const title = now.there(i) ? taking : `${who(i)} is away`;
  const what = [[i === j ? "of its own" : `from ${who(j)}`, now.weight(i, j).toFixed(3)]];
  const found = now.there(i) ? what : [];
  const box = $("matrix").getBoundingClientRect();
  tell(box.left + scrollX + edge + (j + 0.5) * size, box.top + scrollY + edge + (i + 0.7) * size, title, found);
  if (speaking) speak(title, found);
}

function leaveMatrix() {
  matrix.cell = null;
  drawMatrix();
  hush();
}

function stop() {
  clearInterval(matrix.playing);
  matrix.playing = null;
  $("play").textContent = "Play";
}

function play() {
  const slider = $("round");
  $("average").checked = false;
  if (Number(slider.value) >= Number(slider.max)) slider.value = 0;
  $("play").textContent = "Pause";
  matrix.playing = setInterval(() => {
    slider.value = Number(slider.value) + 1;
    drawMatrix();
    if (Number(slider.value) >= Number(slider.max)) stop();
  }, 120);
}

$("matrix").addEventListener("pointermove", (event) => {
  const { edge, size, now } = matrix.frame, box = $("matrix").getBoundingClientRect();
  const [i, j] = [event.clientY - box.top, event.clientX - box.left].map((at) => Math.floor((at - edge) / size));
  if (Math.min(i, j) >= 0 && Math.max(i, j) < now.n) readMatrix(i, j);
  else leaveMatrix();
});
$("matrix").addEventListener("pointerleave", leaveMatrix);
$("matrix").addEventListener("blur", leaveMatrix);
$("matrix").addEventListener("keydown", (event) => {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const [i, j] = matrix.cell ?? [0, -1], most = matrix.run.clients - 1;
  const kept = (at) => Math.max(0, Math.min(most, at));
  readMatrix(kept(i + step[0]), kept(j + step[1]), true);
});
$("round").addEventListener("input", () => {
  stop();
  $("average").checked = false;
  drawMatrix();
});
$("average").addEventListener("change", () => (stop(), drawMatrix()));
$("run").addEventListener("change", () => (stop(), openRun()));
$("play").addEventListener("click", () => (matrix.playing ? stop() : play()));
$("collaboration").hidden = !data.matrices.length && !data.leftOut;
$("matrices").hidden = !data.matrices.length;
$("left-out").hidden = !data.leftOut;
$("left-out").textContent = `${data.leftOut} matrices are too large for this page; collaboration.parquet has them all.`;
if (data.matrices.length) {
  const several = data.columns.length > 1;
  fill($("run"), data.matrices.map((run) => (several ? `${run.name}, ${run.column}` : run.name)));
  $("run").value = data.opened;
  openRun();
}
state.redraw.push(drawMatrix);
redraw();
