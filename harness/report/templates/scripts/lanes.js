// The canvas: axis, bands, and the order of the lanes.  A lane is {name, h, paint}; lanes without data are omitted.
const main = $('tl'), mini = $('mini');
let W = 0, LEFT = 0, RIGHT = 0, HEIGHT = 0, queued = false;
const LANES = new Map();   // name -> {y, h}
const HITS = [];           // what can be pointed at, last painted on top: {x0, x1, y0, y1, sel}

const X = t => LEFT + (t - VIEW.a) / (VIEW.b - VIEW.a) * (RIGHT - LEFT);
const T = x => VIEW.a + (x - LEFT) / (RIGHT - LEFT) * (VIEW.b - VIEW.a);
const NARROW = () => W < 620;
const hasMarks = DATA.marks.of.some(s => s);

function lanes() {
  const list = [];
  if (DATA.violations.length) list.push(['flag', 22, 0]);
  list.push(['axis', 20, 0]);
  if (DATA.faults.length) list.push(['fault', 32, 4]);
  if (DATA.segments.length || DATA.faults.some(f => f.alone.length || f.nodes.length))
    DATA.servers.forEach((_, n) => list.push(['node' + n, 25, n === DATA.servers.length - 1 ? 10 : 0]));
  if (hasMarks) list.push(['mark', 56, 10], ['lag', 56, 10]);
  if (PUT_AT.length) list.push(['elements', 20 + ELEMENT_ROW * PUT_AT.length, 10]);
  if (OPS.n) list.push(['rate', 92, 10], ['latency', 108, 10], ['key', 96, 4]);
  return list;
}

function layout() {
  W = main.clientWidth;
  LEFT = NARROW() ? 48 : 64; RIGHT = W - (NARROW() ? 8 : 16);
  LANES.clear();
  let y = 4;
  for (const [name, h, after] of lanes()) { LANES.set(name, { y, h }); y += h + after; }
  HEIGHT = y + 4;
}

function context(canvas, height) {
  const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    canvas.style.height = height + 'px';
  }
  const g = canvas.getContext('2d');
  g.setTransform(ratio, 0, 0, ratio, 0, 0); g.clearRect(0, 0, width, height);
  g.textBaseline = 'middle'; g.font = font(); g.lineWidth = 1;
  return g;
}

function draw() {
  if (queued) return;
  queued = true;
  requestAnimationFrame(() => { queued = false; paint(); paintMini(); describe(); spanned(); });
}

// Other parts of the page that follow the span of the timeline; updated once per span.
let spannedAs = '';
function spanned() {
  const span = `${VIEW.a} ${VIEW.b}`;
  if (span === spannedAs) return;
  spannedAs = span;
  logs(); outside();
}

function paint() {
  layout();
  const g = context(main, HEIGHT);
  HITS.length = 0;
  const from = LANES.get('fault') || LANES.get('axis');
  clipped(g, 0, HEIGHT, () => bands(g, from.y, HEIGHT - from.y - 6, X));
  axis(g);
  DATA.servers.forEach((_, n) => LANES.has('node' + n) && nodeLane(g, n));
  if (LANES.has('mark')) { markLane(g); lagLane(g); }
  if (LANES.has('elements')) elementLane(g);
  if (OPS.n) { rateLane(g); latencyLane(g); keyLane(g); }
  violations(g);
  if (LANES.has('fault')) faultNames(g);
  crosshair(g);
  $('range').textContent = `${VIEW.a.toFixed(VIEW.b - VIEW.a < 5 ? 3 : 1)} – ${VIEW.b.toFixed(VIEW.b - VIEW.a < 5 ? 3 : 1)} s`;
}

function clipped(g, y, h, paintIt) {
  g.save(); g.beginPath(); g.rect(LEFT, y, RIGHT - LEFT, h); g.clip(); paintIt(); g.restore();
}

function bands(g, y, h, x) {
  for (const f of DATA.faults) {
    const a = x(f.start), b = x(f.end);
    if (b < LEFT || a > RIGHT) continue;
    g.fillStyle = COLOUR.band; g.fillRect(a, y, b - a, h);
    g.fillStyle = COLOUR['band-edge']; g.fillRect(a - .5, y, 1, h); g.fillRect(b - .5, y, 1, h);
    if (VIEW.sel === 'fault.' + f.n) { g.strokeStyle = COLOUR.accent; g.lineWidth = 2; g.strokeRect(a, y, b - a, h - 1); g.lineWidth = 1; }
  }
}

const STEPS = [.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800];
function axis(g) {
  const { y, h } = LANES.get('axis'), px = RIGHT - LEFT, span = VIEW.b - VIEW.a;
  const step = STEPS.find(s => s / span * px >= (NARROW() ? 62 : 92)) || 3600;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  g.textAlign = 'left';
  for (let k = Math.ceil(VIEW.a / step - 1e-9); k * step <= VIEW.b + 1e-9; k++) {
    const t = k * step, x = X(t), text = t.toFixed(digits) + ' s', w = g.measureText(text).width;
    g.fillStyle = COLOUR.grid; g.fillRect(Math.round(x), y + h - 2, 1, HEIGHT - y - h);
    g.fillStyle = COLOUR.dim; g.fillText(text, clamp(x - w / 2, LEFT, RIGHT - w), y + h / 2);
  }
}

function faultNames(g) {
  const { y, h } = LANES.get('fault');
  let free = LEFT; // of faults that overlap, a label begins behind the one before it
  for (const f of [...DATA.faults].sort((one, other) => one.start - other.start)) {
    const a = clamp(X(f.start), LEFT, RIGHT), b = clamp(X(f.end), LEFT, RIGHT);
    if (b - a < 2) continue;
    HITS.push({ x0: a, x1: b, y0: y, y1: y + h, sel: 'fault.' + f.n });
    const from = Math.max(a + 5, free), room = b - from - 3;
    const lines = wrap(g, `${f.n} ${f.name}`, room, 2) || (room > g.measureText(String(f.n)).width ? [String(f.n)] : []);
    g.textAlign = 'left'; g.fillStyle = COLOUR.ink;
    lines.forEach((line, k) => {   // on a ground of its own, so that no line runs through it
      g.fillStyle = COLOUR.band; g.fillRect(from - 2, y + 3 + 13 * k, g.measureText(line).width + 4, 13);
      g.fillStyle = COLOUR.ink; g.fillText(line, from, y + 9 + 13 * k);
    });
    if (lines.length) free = from + Math.max(...lines.map(line => g.measureText(line).width)) + 8;
  }
}

function wrap(g, text, room, most) {
  const lines = [];
  for (const word of text.split(/(?<=[ -])/)) {
    const last = lines.length ? lines[lines.length - 1] : null;
    if (last !== null && g.measureText(last + word.trimEnd()).width <= room) lines[lines.length - 1] = last + word; else lines.push(word);
  }
  return lines.length <= most && lines.every(l => g.measureText(l.trimEnd()).width <= room) ? lines : null;
}

// A bold line for the chosen violation, or the first; a tick at the margin for each other violation in view.  Then flags:
// first for the bold line, then for the first wrong step; a flag that would cover another one is omitted.
function violations(g) {
  if (!LANES.has('flag')) return;
  const { y, h } = LANES.get('flag'), seen = DATA.violations.map((v, i) => [X(v.t), v, i]).filter(([x]) => x >= LEFT - 1 && x <= RIGHT + 1);
  const bold = VIEW.sel.startsWith('violation.') ? +VIEW.sel.slice(10) : 0;
  for (const [x, , i] of seen) {
    g.fillStyle = COLOUR.bad;
    if (i === bold) g.fillRect(Math.round(x) - 1.5, y + h - 3, 3, HEIGHT - y - h - 3);
    else g.fillRect(Math.round(x) - 1, y + h - 3, 2, 12);
    HITS.push({ x0: x - 3, x1: x + 3, y0: y, y1: y + h, sel: 'violation.' + i });
  }
  g.font = font(650);
  const rank = ([, v, i]) => i === bold ? 0 : v.open ? 1 : 2, flags = [];
  for (const [x, v, i] of [...seen].sort((a, b) => rank(a) - rank(b))) {
    const text = NARROW() ? v.text.split(',')[0] : `${v.text}, ${secs(v.t)}`, w = g.measureText(text).width + 14;
    const left = clamp(x - 1, LEFT, RIGHT - w);
    if (flags.some(([a, b]) => left <= b && left + w >= a)) continue;
    g.fillStyle = COLOUR.bad; g.fillRect(left, y, w, h - 3);
    g.fillStyle = COLOUR.panel; g.textAlign = 'left'; g.fillText(text, left + 7, y + (h - 3) / 2 + .5);
    flags.push([left - 4, left + w + 4]);
    HITS.push({ x0: left, x1: left + w, y0: y, y1: y + h, sel: 'violation.' + i });
  }
  g.font = font();
}

function crosshair(g) {
  if (!VIEW.hover) return;
  const { y } = LANES.get('axis'), x = VIEW.hover.x;
  if (x < LEFT || x > RIGHT) return;
  g.fillStyle = COLOUR.dim; g.globalAlpha = .5; g.fillRect(Math.round(x), y + 18, 1, HEIGHT - y - 24); g.globalAlpha = 1;
}

function laneTitle(g, name, text) {
  const { y } = LANES.get(name);
  g.textAlign = 'left';
  const room = RIGHT - LEFT - 12;
  while (g.measureText(text).width > room && text.includes(' ')) text = text.slice(0, text.lastIndexOf(' '));
  const w = g.measureText(text).width;
  g.globalAlpha = .85; g.fillStyle = COLOUR.panel; g.fillRect(LEFT + 3, y, w + 8, 15); g.globalAlpha = 1;
  g.fillStyle = COLOUR.dim; g.fillText(text, LEFT + 7, y + 8);
}

function scaleMark(g, y, text, line) {
  g.textAlign = 'right'; g.fillStyle = COLOUR.dim; g.fillText(text, LEFT - 6, y);
  if (line) { g.fillStyle = COLOUR.grid; g.fillRect(LEFT, Math.round(y), RIGHT - LEFT, 1); }
}

function round125(x) {
  const p = 10 ** Math.floor(Math.log10(Math.max(x, 1e-9)));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map(k => k * p).find(k => k >= x - 1e-9);
}

// The strip on top: the whole run, the window on it.
function paintMini() {
  const h = 40, g = context(mini, h), x = t => LEFT + t / END * (RIGHT - LEFT), r = DATA.rate;
  for (const f of DATA.faults) { g.fillStyle = COLOUR.band; g.fillRect(x(f.start), 0, x(f.end) - x(f.start), h); }
  const per = Math.max(1, Math.ceil(r.ok.length / ((RIGHT - LEFT) / 3)));
  const sums = [];
  for (let i = 0; i < r.ok.length; i += per) { let s = 0; for (let k = i; k < Math.min(i + per, r.ok.length); k++) s += r.ok[k] + r.miss[k]; sums.push(s); }
  const top = Math.max(1, ...sums), w = per * r.step / END * (RIGHT - LEFT);
  g.fillStyle = COLOUR['ok-pale'];
  sums.forEach((s, i) => { const bar = s / top * (h - 8); g.fillRect(LEFT + i * w, h - bar, Math.max(.6, Math.min(w - .4, RIGHT - LEFT - i * w)), bar); });
  g.fillStyle = COLOUR.bad;
  const bold = VIEW.sel.startsWith('violation.') ? +VIEW.sel.slice(10) : 0;
  DATA.violations.forEach((v, i) => g.fillRect(x(v.t) - 1, 0, i === bold ? 3 : 2, i === bold ? h : 8));
  const a = x(VIEW.a), b = x(VIEW.b);
  g.fillStyle = COLOUR.panel; g.globalAlpha = .65; g.fillRect(LEFT, 0, a - LEFT, h); g.fillRect(b, 0, RIGHT - b, h); g.globalAlpha = 1;
  g.strokeStyle = COLOUR.accent; g.lineWidth = 1.5; g.strokeRect(a + .75, .75, Math.max(2, b - a - 1.5), h - 1.5);
  g.fillStyle = COLOUR.accent; g.fillRect(a - 1.5, h / 2 - 8, 4, 16); g.fillRect(b - 2.5, h / 2 - 8, 4, 16);
}
