// The page of `torchcaps explore`: draws the exhibits that the server makes. Nothing is loaded from elsewhere.

const $ = (id) => document.getElementById(id);
const MAP = 168; // pixels of a picture with a map over it
const SHEET = 280; // pixels of the longer side of the drawing, about
const FULL = 128; // of 255: how strong the colour of a word is at most, so that it is read by day and by night
const BRUSHES = { white: "#ffffff", red: "#ff0000", green: "#00ff00", blue: "#0000ff", yellow: "#ffff00", magenta: "#ff00ff", cyan: "#00ffff",
  orange: "#ff8000" }; // those of the figures that networks of objects are trained on
const FIGURES = ["disc", "square", "triangle", "line"]; // what a click draws, if the network takes pictures apart
const RADIUS = 4.5 / 32; // of a figure, in sides of the picture
const KEEP = "Keep an image, then draw another one.";

const state = {
  network: null, // what the server tells of it
  look: null, // the number of the latest look
  past: null, // that of the one before, for the server to forget
  predicted: null, // the most active class
  fixed: null, // the class that was clicked
  pointed: null, // the class under the pointer
  shown: null, // the class that is asked about
  activation: null, // of each class
  pose: null, // the exhibit
  moved: [], // the pose as the sliders have it
  routing: null, // the exhibit
  kept: null, // {look, target} for swapping
  picture: null, // the image, as an <img>
  boxes: null, // the exhibit
  words: null, // the exhibit
  labels: null, // the classes that a test image is labelled with, if that is known
  apart: null, // the exhibit of a picture that is taken apart
  brush: BRUSHES.white,
  figure: FIGURES[0],
  map: null, // of the class that is pointed at: {share, extent, even}, to lie over the drawing
};

// ---- asking the server

async function ask(path, query = {}, body = undefined) {
  const address = `api/${path}?${new URLSearchParams(query)}`;
  let answer;
  try {
    answer = await fetch(address, body === undefined ? {} : { method: "POST", body });
  } catch {
    throw new Error("the server does not answer. Was it stopped?");
  }
  const told = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(told.error);
  return told;
}

// Asks about a look, and a class: undefined if another one is on the page by the time of the answer.
async function askOf(path, query) {
  const shown = () => query.look === state.look && (query.target ?? state.shown) === state.shown;
  if (query.look === null) return undefined; // another network was chosen
  try {
    const told = await ask(path, query);
    return shown() ? told : undefined;
  } catch (error) {
    if (shown()) throw error;
    return undefined;
  }
}

// Asks for what a section shows: if that fails, the section says why, in place of what it held before.
async function askFor(section, path, query) {
  try {
    const exhibit = await askOf(path, query);
    if (exhibit !== undefined) $(section).classList.remove("failed");
    return exhibit;
  } catch (error) {
    $(section).hidden = false;
    $(section).classList.add("failed");
    $(section).querySelector(".failure").textContent = error.message;
    return undefined;
  }
}

function complain(error) {
  $("message").textContent = error.message;
  $("message").hidden = false;
}

// How many jobs are at work or about to start: none, and the page has settled.
let jobs = 0;
function busy(change) {
  jobs += change;
  document.body.dataset.jobs = jobs;
}

// Runs a job with the latest arguments only: those that come while it runs wait, and replace each other.
function latest(job) {
  let waiting = null;
  let running = false;
  return async (...given) => {
    waiting = given;
    if (running) return;
    running = true;
    busy(1);
    while (waiting) {
      const now = waiting;
      waiting = null;
      await job(...now).catch(complain);
    }
    running = false;
    busy(-1);
  };
}

function later(job, wait) {
  let timer = null;
  return () => {
    if (timer === null) busy(1);
    clearTimeout(timer);
    timer = setTimeout(() => {
      timer = null;
      job();
      busy(-1);
    }, wait);
  };
}

// ---- small parts

function says(section, exhibit) {
  $(section).querySelector(".says").textContent = exhibit.text;
}

function element(kind, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(kind), attributes);
  made.append(...children);
  return made;
}

function picture(source, caption, options = {}) {
  const image = element("img", { src: source, className: "pixels", alt: caption });
  return element("figure", options, image, element("figcaption", { textContent: caption }));
}

function surface(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}

const name = (label) => state.network.classes[label];
const counted = (steps) => `${steps} step${steps === 1 ? "" : "s"}`;
const blend = (from, to, share) => from.map((number, place) => Math.round(number + (to[place] - number) * share));
const colour = (rgb) => `rgb(${rgb.join(",")})`;
const style = (which) => getComputedStyle(document.body).getPropertyValue(`--${which}`).trim();
const channels = (hex) => [1, 3, 5].map((from) => parseInt(hex.slice(from, from + 2), 16));

function bars(place, activation, predicted, asButtons = false) { // predicted: the labels to mark
  const classes = state.network.classes;
  if (place.children.length !== classes.length) {
    place.replaceChildren(...classes.map((text, label) => {
      const fill = element("div", { className: "fill" });
      const bar = element(asButtons ? "button" : "div", { className: "bar", title: text },
        element("span", { className: "name", textContent: text }),
        element("span", { className: "track" }, fill), element("span", { className: "value" }));
      if (asButtons) {
        bar.addEventListener("mouseenter", () => point(label));
        bar.addEventListener("focus", () => point(label));
        bar.addEventListener("click", () => fix(label));
        bar.addEventListener("keydown", (event) => {
          const next = { ArrowUp: bar.previousSibling, ArrowDown: bar.nextSibling }[event.key];
          if (!next) return;
          event.preventDefault();
          next.focus();
        });
      }
      return bar;
    }));
    place.style.setProperty("--name", `${Math.max(...classes.map((text) => text.length)) + 1}ch`);
  }
  [...place.children].forEach((bar, label) => {
    const value = activation[label]; // null: not finite
    bar.querySelector(".fill").style.width = `${100 * Math.max(0, Math.min(1, value ?? 0))}%`;
    bar.querySelector(".value").textContent = value === null ? "NaN" : value.toFixed(2);
    bar.classList.toggle("predicted", predicted.includes(label));
    bar.classList.toggle("asked", label === state.shown);
    if (!asButtons) return;
    const marks = { predicted: "the answer", label: "the label" };
    bar.classList.toggle("label", state.labels?.includes(label) ?? false);
    bar.classList.toggle("fixed", label === state.fixed);
    bar.ariaPressed = label === state.fixed;
    bar.ariaLabel = [`${name(label)}: ${bar.querySelector(".value").textContent}`,
      ...Object.keys(marks).filter((mark) => bar.classList.contains(mark)).map((mark) => marks[mark])].join(", ");
  });
}

// Where an image lies in a square, and how large its pixels are there.
function placed(image, size) {
  const unit = size / Math.max(...state.network.image_shape.slice(1));
  const [wide, high] = [image.naturalWidth * unit, image.naturalHeight * unit];
  return { unit, wide, high, x0: (size - wide) / 2, y0: (size - high) / 2 };
}

function drawPicture(context, image, size) {
  const { x0, y0, wide, high } = placed(image, size);
  context.imageSmoothingEnabled = false;
  context.fillStyle = "#000";
  context.fillRect(0, 0, size, size);
  context.drawImage(image, x0, y0, wide, high);
}

// The share of a class at each place over the image, on one scale for all: clear where it is even, full blue for none of it,
// full red for twice as much or more.
function drawMap(canvas, image, share, extent, even, size = MAP) {
  const context = surface(canvas, size, size);
  drawPicture(context, image, size);
  drawShares(context, image, share, extent, even, size);
}

function drawShares(context, image, share, extent, even, size) {
  const { unit, x0, y0 } = placed(image, size);
  const over = extent ?? { left: 0, top: 0, right: image.naturalWidth, bottom: image.naturalHeight };
  const [rows, columns] = [share.length, share[0].length];
  const [cellWide, cellHigh] = [((over.right - over.left) / columns) * unit, ((over.bottom - over.top) / rows) * unit];
  share.forEach((row, y) => row.forEach((value, x) => {
    if (value === null) return;
    const strength = Math.max(-1, Math.min(1, value / even - 1));
    context.fillStyle = `rgba(${(strength > 0 ? [222, 66, 48] : [66, 130, 196]).join(",")},${0.7 * Math.abs(strength)})`;
    context.fillRect(x0 + over.left * unit + x * cellWide + 0.5, y0 + over.top * unit + y * cellHigh + 0.5, cellWide - 1, cellHigh - 1);
  }));
}

// Boxes around things, each with the name of its class: [left, top, right, bottom] in pixels of the image.
function drawBoxes(context, image, things, size) {
  const { unit, x0, y0 } = placed(image, size);
  context.font = "bold 13px system-ui, sans-serif";
  for (const { label, box } of things) {
    const [left, top, right, bottom] = box.map((edge, side) => Math.min(size - 1, Math.max(1, edge * unit + (side % 2 ? y0 : x0))));
    const asked = label === state.shown;
    context.strokeStyle = context.fillStyle = asked ? "#ff6a55" : "#7db7e8";
    context.lineWidth = asked ? 3 : 2;
    context.strokeRect(left, top, right - left, bottom - top);
    const wide = context.measureText(name(label)).width + 8;
    const above = top >= 17 ? top - 17 : top;
    context.fillRect(left - 1, above, wide, 17);
    context.fillStyle = "#000";
    context.fillText(name(label), left + 3, above + 13);
  }
}

function drawTable(canvas, rows, paint) {
  const columns = rows[0].length;
  const [cell, high] = [Math.max(4, Math.min(22, 160 / columns)), Math.max(4, Math.min(9, 192 / rows.length))];
  const font = "11px system-ui, sans-serif";
  const measure = canvas.getContext("2d");
  measure.font = font;
  const widest = Math.max(...rows[0].map((_, x) => measure.measureText(name(x)).width));
  const upright = widest > cell - 2; // names that are wider than a column stand on their ends
  const top = columns > 20 ? 0 : upright ? Math.min(80, widest + 6) : 16;
  canvas.dataset.top = top;
  const context = surface(canvas, cell * columns, top + high * rows.length);
  context.font = font;
  context.textAlign = upright ? "left" : "center";
  for (let x = 0; top && x < columns; x++) {
    context.save();
    context.fillStyle = style(x === state.shown ? "red" : "grey");
    context.translate((x + 0.5) * cell, upright ? top - 4 : 11);
    if (upright) context.rotate(-Math.PI / 2);
    context.fillText(name(x), 0, upright ? 4 : 0, upright ? top - 6 : cell - 1);
    context.restore();
  }
  rows.forEach((row, y) => row.forEach((value, x) => {
    context.fillStyle = paint(value ?? 0);
    context.fillRect(x * cell, top + y * high, cell - 1, high - 1);
  }));
}

// ---- the drawing

const canvas = $("canvas");
const pen = canvas.getContext("2d", { willReadFrequently: true });
let last = null; // where the stroke was that goes on
let cursor = null; // where the keyboard draws
let byHand = false; // whether what is on the canvas was drawn

// The canvas has a whole number of its own pixels for each of the network's, so that images are as sharp as they are.
function lay() {
  const [high, wide] = state.network.image_shape.slice(1);
  const scale = window.devicePixelRatio || 1;
  const unit = Math.max(1, Math.round((SHEET * scale) / Math.max(high, wide)));
  [canvas.width, canvas.height] = [wide * unit, high * unit];
  const shrunk = Math.min(1 / scale, (1.05 * SHEET) / Math.max(canvas.width, canvas.height));
  $("sheet").style.width = `${canvas.width * shrunk}px`;
  $("sheet").style.aspectRatio = `${wide} / ${high}`;
  wipe();
}

function wipe() {
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  [byHand, cursor] = [false, null];
  $("sheet").dataset.holds = "nothing";
  $("truth").textContent = $("answer").textContent = "";
  $("none").hidden = true;
  state.labels = null;
}

// A line to a place, from where the last one ended. The first one takes away an image that was not drawn.
function lineTo(here) {
  if (!byHand) wipe();
  byHand = true;
  $("sheet").dataset.holds = "drawing";
  const side = Math.max(...state.network.image_shape.slice(1));
  pen.strokeStyle = state.brush;
  pen.lineCap = pen.lineJoin = "round";
  pen.lineWidth = (Math.max(canvas.width, canvas.height) / side) * (side < 16 ? 1.1 : 2.2);
  pen.beginPath();
  pen.moveTo(...(last ?? here));
  pen.lineTo(here[0] + 0.01, here[1]);
  pen.stroke();
  last = here;
  showDrawing();
}

// A figure of the chosen kind and colour in the middle of a place.
function stamp([x, y]) {
  if (!byHand) wipe();
  byHand = true;
  $("sheet").dataset.holds = "drawing";
  const radius = RADIUS * Math.max(canvas.width, canvas.height);
  pen.fillStyle = state.brush;
  pen.beginPath();
  if (state.figure === "disc") pen.arc(x, y, radius, 0, 2 * Math.PI);
  else if (state.figure === "square") pen.rect(x - 0.85 * radius, y - 0.85 * radius, 1.7 * radius, 1.7 * radius);
  else {
    pen.moveTo(x, y - 1.1 * radius);
    pen.lineTo(x + 0.95 * radius, y + 0.8 * radius);
    pen.lineTo(x - 0.95 * radius, y + 0.8 * radius);
  }
  pen.fill();
  showDrawing();
}

const stamps = () => state.network?.apart && state.figure !== "line";

// Buttons of which one is chosen.
function choices(place, options, chosen, choose) {
  $(place).replaceChildren(...options.map((option) => {
    const button = element("button", { textContent: option, role: "radio", ariaChecked: option === chosen, title: option });
    button.addEventListener("click", () => {
      for (const other of $(place).children) other.ariaChecked = other === button;
      choose(option);
    });
    return button;
  }));
}

function offerFigures(offered) {
  $("brushes").hidden = $("figures").hidden = !offered;
  Object.assign(state, { brush: BRUSHES.white, figure: FIGURES[0] });
  choices("brushes", Object.keys(BRUSHES), "white", (brush) => { state.brush = BRUSHES[brush]; });
  for (const button of $("brushes").children) button.style.setProperty("--brush", BRUSHES[button.textContent]);
  choices("figures", FIGURES, state.figure, (figure) => { state.figure = figure; });
}

function stroke(event) {
  const box = canvas.getBoundingClientRect();
  (stamps() ? stamp : lineTo)([(event.clientX - box.left) * (canvas.width / box.width), (event.clientY - box.top) * (canvas.height / box.height)]);
}

// One finger, or the main button, draws: a second finger would join its strokes to those of the first.
canvas.addEventListener("pointerdown", (event) => {
  if (!state.network?.draws || !event.isPrimary || event.button !== 0) return;
  canvas.setPointerCapture(event.pointerId);
  stroke(event);
});
canvas.addEventListener("pointermove", (event) => last && event.isPrimary && !stamps() && stroke(event));
for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => { if (event.isPrimary) last = null; });

canvas.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && stamps()) stamp(cursor ?? [canvas.width / 2, canvas.height / 2]);
  const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!move || !state.network?.draws) return;
  event.preventDefault();
  const most = [canvas.width, canvas.height];
  const from = cursor ?? most.map((size) => size / 2);
  const to = from.map((place, axis) => Math.max(0, Math.min(most[axis], place + (move[axis] * Math.max(...most)) / 28)));
  if (!event.shiftKey && !stamps()) {
    last = byHand ? from : null;
    lineTo(to);
    last = null;
  }
  cursor = to;
  drawOver();
});
for (const change of ["focus", "blur"]) canvas.addEventListener(change, () => drawOver());

const showDrawing = latest(async () => {
  const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
  await see("look", { name: "the drawing" }, blob);
});

const overlay = $("overlay");

// What the network says of the drawing, over it: boxes, and the map of the class that is pointed at.
function drawOver() {
  const [wide, high] = [canvas.clientWidth, canvas.clientHeight];
  const context = surface(overlay, wide, high);
  if (state.picture && state.boxes) {
    const size = Math.max(wide, high);
    context.translate((wide - size) / 2, (high - size) / 2); // the sheet is no square where the image is none
    if (state.map) drawShares(context, state.picture, ...state.map, size);
    drawBoxes(context, state.picture, state.boxes.things, size);
    context.translate((size - wide) / 2, (size - high) / 2);
  }
  if (cursor === null || document.activeElement !== canvas) return;
  context.strokeStyle = "#ffd34d";
  context.lineWidth = 2;
  context.beginPath();
  context.arc(cursor[0] * (wide / canvas.width), cursor[1] * (high / canvas.height), 6, 0, 2 * Math.PI);
  context.stroke();
}

$("clear").addEventListener("click", () => {
  wipe();
  showDrawing();
});

let opening = null; // what a picture waits for that comes while a network opens
const showFile = latest(async (file) => {
  await opening;
  if (!state.network.draws) return;
  if (await see("look", { name: file.name }, file)) onCanvas();
});

$("upload").addEventListener("change", (event) => {
  const [file] = event.target.files;
  if (file) showFile(file);
  event.target.value = "";
});

// A picture that is dropped on the page, or pasted, is as one that is uploaded.
function take(event, given) {
  const [file] = given.files;
  const draws = opening !== null || state.network?.draws;
  if (!file || (event.type === "paste" && !draws)) return; // text, for the field that it came to
  event.preventDefault(); // a browser would leave the page for the file
  if (draws) showFile(file);
}
document.addEventListener("dragover", (event) => { if (event.dataTransfer.types.includes("Files")) event.preventDefault(); });
document.addEventListener("drop", (event) => take(event, event.dataTransfer));
document.addEventListener("paste", (event) => take(event, event.clipboardData));

let sampled = 0;
const sample = latest(async () => {
  const chosen = $("sample-class").value;
  const shown = await see("sample", { number: sampled++, ...(chosen === "" ? {} : { class: chosen }) });
  if (shown && !state.network.reads) onCanvas();
});

const readText = latest(async () => {
  const text = $("text").value;
  if (text.trim()) await see("read", {}, text);
});
$("text").addEventListener("input", () => readText());
$("sample").addEventListener("click", () => sample());
$("sample-class").addEventListener("change", () => sample());

// What the network sees, large.
function onCanvas() {
  [byHand, cursor] = [false, null];
  $("sheet").dataset.holds = "picture";
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.imageSmoothingEnabled = false;
  const unit = Math.min(canvas.width / state.picture.naturalWidth, canvas.height / state.picture.naturalHeight);
  const [wide, high] = [state.picture.naturalWidth * unit, state.picture.naturalHeight * unit];
  pen.drawImage(state.picture, (canvas.width - wide) / 2, (canvas.height - high) / 2, wide, high);
}

// ---- a look at an image

let looks = 0;

// Whether it is shown: not if something else, or another network, was asked for in the meantime.
async function see(path, query, body) {
  const network = state.network.name;
  const asked = ++looks;
  const overtaken = () => asked !== looks || network !== state.network.name;
  const also = { ...(state.fixed === null ? {} : { target: state.fixed }), ...(state.past === null ? {} : { instead: state.past }) };
  const answer = await ask(path, { network, ...query, ...also }, body);
  if (overtaken()) return false;
  $("message").hidden = true;
  if (answer.apart) return showApart(answer, overtaken);
  const { activations } = answer;
  state.past = state.look === state.kept?.look ? null : state.look;
  state.look = answer.look;
  state.predicted = activations.predicted;
  state.there = answer.there;
  state.pointed = null;
  state.shown = state.fixed ?? state.predicted;
  state.activation = activations.activation;
  state.map = null;
  state.words = state.network.reads ? activations : null;
  state.boxes = answer.boxes ? { ...answer.boxes, things: answer.boxes.things[0] } : null;
  tellTruth(answer);
  tellStrange(answer.none);
  if (state.words) {
    if (path === "sample") $("text").value = answer.text;
    says("words", activations);
    $("classes").querySelector(".says").textContent = "Each bar is the activation of a class's capsule. It tells whether the text belongs to this class.";
    $("words").hidden = false;
    showClasses();
    return true;
  }
  state.picture = element("img", { src: activations.picture });
  await state.picture.decode();
  if (overtaken()) return false;
  $("seen").src = activations.picture;
  says("classes", activations);
  showClasses();
  showPose(answer.pose);
  afterwards();
  return true;
}

// ---- a picture taken apart

async function showApart({ look, apart, empty }, overtaken) {
  const seen = element("img", { src: apart.picture });
  await seen.decode();
  if (overtaken()) return false;
  stop();
  state.past = state.look;
  Object.assign(state, { look, apart, picture: seen });
  $("apart").hidden = false;
  $("apart-title").textContent = apart.title;
  says("apart", apart);
  $("apart-seen").src = apart.picture;
  $("apart-step").max = apart.painted.length;
  $("apart-step").value = apart.steps;
  $("apart-step").disabled = $("apart-play").disabled = apart.painted.length === 1;
  $("apart-parts").replaceChildren(...apart.parts[0].map((part, slot) => picture(part, state.network.classes[slot])));
  [...$("apart-parts").children].forEach((figure, slot) => { figure.style.borderColor = apart.colours[slot]; });
  $("answer").textContent = empty ? "nothing is drawn" : "";
  showApartStep();
  return true;
}

function showApartStep() {
  const step = Number($("apart-step").value);
  const { painted, drawn, parts, shares, steps } = state.apart;
  $("apart-text").textContent = `step ${step}${step === steps ? ", as trained" : step > steps ? ", more than in training" : ` of ${steps}`}`;
  $("apart-painted").src = painted[step - 1];
  $("apart-drawn").src = drawn[step - 1];
  [...$("apart-parts").children].forEach((figure, slot) => {
    figure.querySelector("img").src = parts[step - 1][slot];
    figure.querySelector("figcaption").textContent = `${state.network.classes[slot]}: ${Math.round(100 * shares[step - 1][slot])} %`;
  });
}

// What a test image is labelled with, and what the network says: two lines, so that neither is taken for the other.
function tellTruth(seen) {
  const { label, empty } = seen;
  state.labels = label === null ? null : [label].flat();
  const known = state.labels !== null;
  const boxed = (label) => state.boxes?.things.filter((thing) => thing.label === label).length ?? 0;
  const answer = state.there.flatMap((label) => Array(Math.max(1, boxed(label))).fill(label));
  const sorted = (labels) => [...labels].sort((one, other) => one - other).join();
  const right = known && sorted(seen.counted ? answer : state.there) === sorted(state.labels);
  $("truth").textContent = known ? `label: ${listed(state.labels)}` : "";
  const judged = known ? (right ? ", right" : ", wrong") : "";
  $("answer").textContent = empty && !known ? "nothing is drawn" : `answer: ${listed(answer)}${judged}`;
  $("answer").className = known && !right ? "wrong" : "";
}

// Classes by name, each once, with how often it is among them.
function listed(labels) {
  const times = (label) => labels.filter((other) => other === label).length;
  return [...new Set(labels)].map((label) => (times(label) > 1 ? `${times(label)} x ` : "") + name(label)).join(", ") || "nothing";
}

// Whether the image is of any class at all, and why not: a line that opens.
function tellStrange(none) {
  $("none").hidden = !none || none.known[0];
  if ($("none").hidden) return;
  const share = `stranger than ${(100 * none.strangeness[0]).toFixed(1)} % of the validation images`;
  $("none").querySelector("summary").textContent = `none of these classes: ${share}. Why?`;
  says("none", none);
  $("none").querySelector(".pictures").replaceChildren(
    picture(none.pictures[0], "image"), picture(none.reconstructions[0], `drawn as ${none.predicted[0]}`), picture(none.differences[0], "difference"));
}

// The bars, and what else says which classes are there.
function showClasses() {
  $("classes").hidden = false;
  bars($("bars"), state.activation, state.there, true);
  if (state.words) showWords();
  if (state.boxes) showBoxes();
  drawOver();
}

const shaded = (hex, strength) => hex + Math.round(FULL * strength).toString(16).padStart(2, "0");

function showWords() {
  const { pieces, known, shares, colours } = state.words;
  const asked = state.pointed ?? state.fixed;
  const strongest = (row) => row.indexOf(Math.max(...row));
  $("coloured").replaceChildren(...pieces.flatMap((piece, place) => {
    const label = asked ?? strongest(shares[place]);
    const strength = Math.max(0, Math.min(1, shares[place][label]));
    const word = element("span", { textContent: piece.trimEnd(), title: `${name(label)} ${strength.toFixed(2)}`,
      className: known[place] ? "" : "unknown" });
    word.style.backgroundColor = shaded(colours[label], strength);
    return [word, piece.slice(piece.trimEnd().length)];
  }));
  $("legend").replaceChildren(...colours.map((colour, label) => {
    const patch = element("i");
    patch.style.backgroundColor = shaded(colour, 1);
    return element("span", {}, patch, name(label), element("small", { textContent: state.network.meanings[name(label)] ?? "" }));
  }));
}

function showBoxes() {
  $("boxes").hidden = false;
  says("boxes", state.boxes);
  const side = MAP;
  $("things").replaceChildren(...state.boxes.things.map(({ label, activation, box }) => {
    const [left, top, right, bottom] = box;
    const cut = element("canvas");
    const context = surface(cut, side / 2, side / 2);
    const most = Math.max(right - left, bottom - top, 1);
    context.imageSmoothingEnabled = false;
    context.fillRect(0, 0, side / 2, side / 2);
    context.drawImage(state.picture, (left + right - most) / 2, (top + bottom - most) / 2, most, most, 0, 0, side / 2, side / 2);
    const size = `${Math.round(right - left)} x ${Math.round(bottom - top)} pixels`;
    return element("figure", {}, cut, element("figcaption", { textContent: `${name(label)} (${activation.toFixed(2)}): ${size}` }));
  }));
  nothing("boxes", state.boxes.things.length ? "" : "No class is present, because no capsule is longer than the network's threshold.");
}

const afterwards = later(() => {
  if (state.look === null || !state.picture) return; // another network was chosen
  showMaps();
  showRouting();
  showComparison();
  showSwap();
}, 200);

function point(label) {
  state.pointed = label;
  aim();
}

function fix(label) {
  state.fixed = state.fixed === label ? null : label;
  state.pointed = null;
  aim();
}

for (const end of ["mouseleave", "focusout"]) $("bars").addEventListener(end, () => point(null));

const aim = later(() => {
  if (state.activation === null) return; // another network was chosen
  const target = state.pointed ?? state.fixed ?? state.predicted;
  const changed = target !== state.shown;
  state.shown = target;
  state.map = null;
  showClasses();
  if (state.words || !state.picture) return;
  if (state.boxes && (state.pointed ?? state.fixed) !== null) showMaps();
  if (!changed) return;
  askPose();
  showMaps();
  showStep();
  showComparison();
  showSwap();
}, 60);

const current = () => ({ look: state.look, target: state.shown });

// ---- the pose

const askPose = latest(async () => {
  const exhibit = await askFor("pose", "pose", current());
  if (exhibit !== undefined) showPose(exhibit);
});

function showPose(exhibit) {
  state.pose = exhibit;
  for (const place of document.querySelectorAll("b.asked")) place.textContent = name(state.shown);
  $("pose").hidden = exhibit === null;
  $("pose").classList.remove("failed");
  if (exhibit === null) return;
  says("pose", exhibit);
  state.moved = [...exhibit.pose];
  $("drawn").src = exhibit.reconstruction;
  const most = Math.max(...exhibit.changes, 1e-9);
  if ($("sliders").children.length !== exhibit.pose.length) makeSliders(exhibit.pose.length);
  [...$("sliders").children].forEach((slider, place) => {
    const [input, value] = [slider.querySelector("input"), exhibit.pose[place]];
    input.min = value - exhibit.reach;
    input.max = value + exhibit.reach;
    input.step = exhibit.reach / 50;
    input.value = value;
    slider.classList.remove("moved");
    slider.querySelector("b").textContent = value.toFixed(2);
    slider.querySelector(".tells").textContent = exhibit.tells[place] || "·";
    slider.querySelector("i").style.width = `${(100 * exhibit.changes[place]) / most}%`;
  });
  showInClasses(exhibit.in_classes);
}

function makeSliders(count) {
  $("sliders").replaceChildren(...Array.from({ length: count }, (_, place) => {
    const input = element("input", { type: "range", ariaLabel: `number ${place} of the pose` });
    const slider = element("div", { className: "slider" },
      element("div", { className: "top" }, element("span", {}, `${place}: `, element("b")), element("span", { className: "tells" })),
      input, element("div", { className: "effect" }, element("i")));
    input.addEventListener("input", () => {
      state.moved[place] = Number(input.value);
      slider.querySelector("b").textContent = state.moved[place].toFixed(2);
      slider.classList.add("moved");
      redraw(performance.now());
    });
    return slider;
  }));
}

// The one picture first: what the numbers draw in all classes is asked for when the slider rests.
const redraw = latest(async (since) => {
  const { moved } = state; // another list for another pose, and when it is reset
  const [drawn] = await ask("decode", { look: state.look, target: state.shown }, JSON.stringify(moved));
  if (moved !== state.moved) return;
  $("drawn").src = drawn;
  await $("drawn").decode();
  $("drawn").dataset.ms = performance.now() - since;
  rests();
});

const redrawClasses = latest(async () => {
  const { moved } = state;
  const drawn = await ask("decode", { look: state.look }, JSON.stringify(moved));
  if (moved === state.moved) showInClasses(drawn);
});

const rests = later(redrawClasses, 80);

$("reset").addEventListener("click", () => showPose(state.pose));

function showInClasses(pictures) {
  const strip = $("in-classes");
  if (strip.children.length !== pictures.length) {
    strip.replaceChildren(...pictures.map((source, label) => picture(source, name(label))));
  }
  [...strip.children].forEach((figure, label) => {
    figure.querySelector("img").src = pictures[label];
    figure.querySelector("figcaption").textContent = name(label);
    figure.classList.toggle("asked", label === state.shown);
  });
}

// ---- where it was seen

function nothing(section, text) {
  $(section).querySelector(".empty").textContent = text;
}

const showMaps = latest(async () => {
  if (!state.network.decides) return; // the section on routing says so
  const exhibit = await askFor("maps", "assignments", current());
  if (exhibit === undefined) return; // another one is on its way
  $("maps").hidden = false;
  nothing("maps", exhibit === null ? "The child capsules of this network have no place in the image. Each of them sees all of it."
    : "");
  if (exhibit) says("maps", exhibit);
  $("layers").replaceChildren(...(exhibit?.layers ?? []).map(({ layer, share, extent }) => {
    const over = element("canvas", { role: "img", ariaLabel: `share of ${name(state.shown)} at each place of ${layer}` });
    drawMap(over, state.picture, share[0], extent, exhibit.even);
    const known = share[0].flat().filter((number) => number !== null);
    const range = `shares ${Math.min(...known).toFixed(2)} to ${Math.max(...known).toFixed(2)}, even: ${exhibit.even.toFixed(2)}`;
    return element("figure", {}, over,
      element("figcaption", { textContent: `${layer}: ${share[0].length} x ${share[0][0].length} places, ${range}` }));
  }));
  const [top] = exhibit?.layers ?? [];
  const pointed = top && (state.pointed ?? state.fixed) !== null;
  state.map = pointed ? [top.share[0], top.extent, exhibit.even] : null;
  drawOver();
});

// ---- routing

const showRouting = latest(async () => {
  stop();
  const { decides, verdict } = state.network;
  $("routing-title").textContent = decides ? "Routing, step by step" : "Routing";
  if (!decides) {
    $("routing").hidden = false;
    $("stage").hidden = $("play").parentElement.hidden = true;
    nothing("routing", verdict.routing);
    return;
  }
  const exhibit = await askFor("routing", "routing", { look: state.look });
  if (exhibit === undefined) return;
  state.routing = exhibit;
  $("routing").hidden = false;
  nothing("routing", exhibit ? "" : "This network does not find its classes by routing votes.");
  $("stage").hidden = $("play").parentElement.hidden = exhibit === null;
  if (exhibit === null) return;
  says("routing", exhibit);
  const count = exhibit.steps.length;
  $("step").max = count;
  $("step").value = count;
  $("step").disabled = $("play").disabled = count === 1;
  showStep();
});

function showStep() {
  const exhibit = state.routing;
  if (!exhibit) return;
  const [number, count] = [Number($("step").value), exhibit.steps.length];
  const step = exhibit.steps[number - 1];
  $("step-text").textContent = count === 1 ? `${exhibit.routing} takes one step` : `step ${number} of ${count}`;
  const [red, blue, pale] = ["red", "blue", "track"].map((which) => channels(style(which)));
  const paint = (value) => colour(blend(pale, value > 0 ? red : blue, Math.min(1, Math.abs(value))));
  drawTable($("assigned"), step.assignment, (share) => paint(share / exhibit.even - 1));
  drawTable($("agreed"), step.agreement, paint);
  $("assigned-scale").textContent = `from 0 (blue) over ${exhibit.even.toFixed(2)} (even) to ${(2 * exhibit.even).toFixed(2)} or more (red)`;
  bars($("step-bars"), step.activation, [step.activation.indexOf(Math.max(...step.activation))]);
  $("step-map").parentElement.hidden = !step.maps;
  if (step.maps) {
    const share = step.maps.map((row) => row.map((classes) => classes[state.shown]));
    drawMap($("step-map"), state.picture, share, exhibit.extent, exhibit.even, 120);
  }
}

let player = null;
function stop() {
  clearInterval(player);
  player = null;
  for (const button of ["play", "apart-play"]) $(button).textContent = "▶ play";
}

// A button that plays steps, and a slider of them.
function plays(button, slider, show) {
  $(button).addEventListener("click", () => {
    if (player !== null) return stop();
    $(button).textContent = "❚❚ pause";
    if ($(slider).value === $(slider).max) $(slider).value = 1;
    show();
    player = setInterval(() => {
      $(slider).value = Number($(slider).value) + 1;
      show();
      if ($(slider).value === $(slider).max) stop();
    }, 800);
  });
  $(slider).addEventListener("input", () => {
    stop();
    show();
  });
}
plays("play", "step", showStep);
plays("apart-play", "apart-step", showApartStep);

// ---- comparing

const sides = [...document.querySelectorAll(".side")].map((place, side) => {
  const made = { routing: element("select", { ariaLabel: "routing" }), steps: element("select", { ariaLabel: "steps" }),
    bars: element("div"), map: element("canvas"), drawn: element("img", { className: "pixels", alt: "reconstruction" }) };
  made.mapFigure = element("figure", {}, made.map, element("figcaption", { textContent: "children of the class" }));
  made.drawnFigure = element("figure", {}, made.drawn, element("figcaption", { textContent: "what its pose draws" }));
  place.append(element("div", { className: "row" }, made.routing, made.steps), made.bars,
    element("div", { className: "pictures" }, made.mapFigure, made.drawnFigure));
  made.routing.addEventListener("change", () => { offerSteps(made); compare[side](); });
  made.steps.addEventListener("change", () => compare[side]());
  return made;
});

function option(value, text) {
  return element("option", { value, textContent: text });
}

function offerRoutings() {
  const { routing, steps, routings } = state.network;
  sides.forEach((side, number) => {
    side.routing.replaceChildren(option("", `${routing}, as trained`), ...routings.map(({ name }) => option(name, name)));
    if (number === 1 && steps === null && routings.length) side.routing.value = "mean";
    offerSteps(side);
    if (number === 1 && steps > 1) side.steps.value = "1";
  });
}

function offerSteps(side) {
  const chosen = state.network.routings.find(({ name }) => name === side.routing.value);
  const own = chosen ? chosen.steps : state.network.steps;
  side.steps.replaceChildren(option("", own === null ? "one pass" : counted(own)),
    ...(own === null ? [] : [1, 2, 3, 4, 5, 6, 8, 10, 15, 20].map((count) => option(count, counted(count)))));
  side.steps.disabled = own === null;
}

const compare = sides.map((side) => latest(async () => {
  let exhibit;
  try {
    exhibit = await askOf("compare", { ...current(), routing: side.routing.value, steps: side.steps.value });
  } catch (error) {
    clearSide(side); // it shows another routing
    throw error;
  }
  if (exhibit === undefined) return;
  $("compare").hidden = false;
  bars(side.bars, exhibit.activations.activation, [exhibit.activations.predicted]);
  const layer = exhibit.assignments?.layers[0];
  side.mapFigure.hidden = !layer;
  if (layer) drawMap(side.map, state.picture, layer.share[0], layer.extent, exhibit.assignments.even, 112);
  side.drawnFigure.hidden = exhibit.picture === null;
  if (exhibit.picture !== null) side.drawn.src = exhibit.picture;
}));

function clearSide(side) {
  side.bars.replaceChildren();
  side.mapFigure.hidden = side.drawnFigure.hidden = true;
}

function showComparison() {
  if (state.network.decides && state.network.routings.length) compare.forEach((ask) => ask());
}

// ---- swapping

$("keep").addEventListener("click", () => {
  state.kept = current();
  showSwap();
});

const showSwap = latest(async () => {
  $("swap").hidden = state.pose === null;
  if (!state.kept || state.pose === null) return;
  let exhibit;
  try {
    exhibit = await askOf("swap", { ...current(), other: state.kept.look, other_target: state.kept.target });
  } catch {
    state.kept = null; // so long ago that the server has forgotten it
    $("swapped").replaceChildren();
    nothing("swap", KEEP);
    return;
  }
  if (exhibit === undefined) return;
  says("swap", exhibit);
  const [here, kept] = exhibit.targets.map(name);
  nothing("swap", "");
  $("swapped").replaceChildren(
    picture(exhibit.pictures[0], `this image: ${here}`), picture(exhibit.reconstructions[0], `its pose as a ${here}`),
    picture(exhibit.swapped[0], `its pose as a ${kept}`),
    picture(exhibit.pictures[1], `the kept image: ${kept}`), picture(exhibit.reconstructions[1], `its pose as a ${kept}`),
    picture(exhibit.swapped[1], `its pose as a ${here}`));
});

// ---- the network

// Takes away all that was said by the network before.
function empty() {
  stop();
  looks += 1; // what is on its way is not for this page any more
  Object.assign(state, { look: null, past: null, predicted: null, fixed: null, pointed: null, shown: null, activation: null, pose: null, moved: [],
    routing: null, kept: null, picture: null, boxes: null, words: null, apart: null, map: null });
  for (const panel of document.querySelectorAll("#right section, #classes")) panel.hidden = true;
  for (const place of ["bars", "step-bars", "in-classes", "swapped", "sample-class"]) $(place).replaceChildren();
  sides.forEach(clearSide);
  for (const place of ["about", "verdict"]) $(place).textContent = "";
  nothing("swap", KEEP);
  $("message").hidden = true;
  $("text").value = "";
  wipe();
  drawOver();
}

const choose = latest(async (network) => {
  empty();
  $("opening").textContent = `opening ${network}`;
  let opened;
  opening = new Promise((done) => { opened = done; });
  $("left").inert = true; // what is on it is of the network before
  try {
    state.network = await ask("network", { name: network });
  } catch (error) {
    $("network").value = state.network?.name ?? network; // which the page still draws for
    throw error;
  } finally {
    $("opening").textContent = "";
    $("left").inert = false;
    opened();
    opening = null;
  }
  const { model, parameters, image_shape, classes, routing, steps, samples, draws, reads, apart, scenes, verdict, decides } = state.network;
  const route = `${routing} in ${steps === null ? "one pass" : counted(steps)}`;
  const takes = reads ? "texts" : `images of ${image_shape.slice(1).join(" x ")}`;
  $("about").textContent = `${model}: ${parameters.toLocaleString("en")} parameters, ${takes}, ${route}.`;
  $("verdict").textContent = verdict === null ? "" : decides ? `${verdict.routing} ${verdict.decoder}` : verdict.decoder;
  $("draw").querySelector(".says").textContent = reads ? "Type a question or a sentence. The network answers while you type."
    : !draws ? "You cannot draw pictures for this network. Choose a test image."
    : apart ? "Choose a colour and a figure, and click where it should be. Later figures cover earlier ones. With the keyboard, arrows move "
      + "and Enter draws a figure. The first one removes an image that you did not draw."
    : `Draw ${scenes ? "several digits" : ""} with the mouse, a finger or the arrow keys. The network answers while you draw. `
      + "The first stroke removes an image that you did not draw.";
  $("draw-title").textContent = reads ? "Ask" : draws ? "Draw" : "Look";
  $("clear").hidden = $("upload").hidden = document.querySelector("label[for=upload]").hidden = !draws;
  $("invitation").hidden = !draws;
  $("sheet").hidden = reads;
  $("text").hidden = !reads;
  $("sample").hidden = !samples;
  $("sample").textContent = reads ? "another question" : scenes ? "another scene" : "test image";
  $("sample-class").hidden = !samples || !state.network.sorted;
  $("sample-class").replaceChildren(option("", "any class"), ...classes.map((text, label) => option(label, text)));
  if (!reads) offerRoutings();
  offerFigures(apart && draws);
  sampled = 0;
  lay();
  drawOver();
  if (samples) await sample();
  else if (draws) await showDrawing();
  else if (!reads) throw new Error(`you cannot draw pictures for ${network}, and its test images are not on this machine`);
});

// ---- the keyboard

const withShortcut = [...document.querySelectorAll("[aria-keyshortcuts]")];
const keyOf = (button) => button.getAttribute("aria-keyshortcuts");

// Buttons that are never shown together may share a key.
const shortcut = (key) => withShortcut.find((button) => keyOf(button) === key && button.checkVisibility());

document.addEventListener("keydown", (event) => {
  const types = event.target.matches("textarea, select, input:not([type=range])");
  if (types || event.ctrlKey || event.altKey || event.metaKey) return;
  const button = shortcut(event.key.toLowerCase());
  if (button && !button.disabled) button.click();
});

const buttonOfKey = new Map(withShortcut.map((button) => [keyOf(button), button]));
$("keys").querySelector("dl").replaceChildren(...[...buttonOfKey].flatMap(([key, button]) => [
  element("dt", {}, element("kbd", { textContent: key })),
  element("dd", { textContent: button.ariaLabel ?? button.textContent }),
]));

// What is drawn in colours of the page is drawn anew in those of the night, and the drawing where it has another size.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => showStep());
addEventListener("resize", () => drawOver());

async function begin() {
  const networks = await ask("networks");
  $("network").replaceChildren(...networks.map((name) => option(name, name)));
  $("network").addEventListener("change", () => choose($("network").value));
  await choose(networks[0]);
  document.body.dataset.ready = "yes";
}

begin().catch(complain);
