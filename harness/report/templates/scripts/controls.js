// Wheel, pointer, keys and buttons.
function changed() { draw(); writeAddress(); }
// The selected violation, fault or operation stays in view while zooming; without a selection, the middle does.
function focus() {
  const [kind, number] = VIEW.sel.split('.'), i = +number;
  const at = kind === 'violation' && DATA.violations[i] ? DATA.violations[i].t
    : kind === 'fault' ? (DATA.faults.find(f => f.n === i) || {}).start : kind === 'op' && i < OPS.n ? OPS.t[i] : undefined;
  return at >= VIEW.a && at <= VIEW.b ? at : (VIEW.a + VIEW.b) / 2;
}
function zoom(factor, at = focus()) { setSpan(at - (at - VIEW.a) * factor, at + (VIEW.b - at) * factor); changed(); }
function pan(share) { const w = VIEW.b - VIEW.a; setSpan(VIEW.a + share * w, VIEW.b + share * w); changed(); }
function whole() { setSpan(0, END); changed(); }
function select(sel) { VIEW.sel = sel; changed(); }

let violationShown = -1;
function toViolation() {
  if (!DATA.violations.length) return;
  violationShown = (violationShown + 1) % DATA.violations.length;
  const v = DATA.violations[violationShown];
  const key = OPS.keys.indexOf(v.key);
  if (key >= 0) chooseKey(key + 1);
  setSpan(v.t - 2.5, v.t + 1.5);
  select('violation.' + violationShown);
}

function toFault(direction) {
  if (!DATA.faults.length) return;
  const at = VIEW.sel.startsWith('fault.') ? DATA.faults.findIndex(f => 'fault.' + f.n === VIEW.sel) : -1;
  const next = at < 0 ? (direction > 0 ? 0 : DATA.faults.length - 1) : clamp(at + direction, 0, DATA.faults.length - 1), f = DATA.faults[next];
  setSpan(f.start - 1, f.end + 1);
  select('fault.' + f.n);
}

function toOperation(direction) {
  const { ops } = keyOps();
  if (!ops.length) return;
  const at = VIEW.sel.startsWith('op.') ? ops.indexOf(+VIEW.sel.slice(3)) : -1;
  const first = ops.findIndex(i => OPS.t[i] >= VIEW.a);
  const k = at >= 0 ? clamp(at + direction, 0, ops.length - 1) : Math.max(0, first), i = ops[k];
  if (OPS.t[i] < VIEW.a || OPS.t[i] > VIEW.b) { const w = VIEW.b - VIEW.a; setSpan(OPS.t[i] - w / 2, OPS.t[i] + w / 2); }
  select('op.' + i);
}

function chooseKey(key) { VIEW.key = key; $('key').value = key; changed(); }

const KEYS = {
  ArrowLeft: () => pan(-.2), a: () => pan(-.2), ArrowRight: () => pan(.2), d: () => pan(.2),
  '+': () => zoom(.6), '=': () => zoom(.6), w: () => zoom(.6), '-': () => zoom(1 / .6), s: () => zoom(1 / .6),
  0: whole, Home: whole, v: toViolation, n: () => toFault(1), p: () => toFault(-1), j: () => toOperation(1), k: () => toOperation(-1),
  Escape: () => { select(''); main.blur(); },
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const act = KEYS[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (act) { event.preventDefault(); act(); }
}

// A plain wheel scrolls the page until the timeline has been clicked: otherwise a reader could not scroll past the drawing.
function onWheel(event) {
  const zooms = event.ctrlKey || event.metaKey || document.activeElement === main;
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); pan(event.deltaX / 800); return; }
  if (!zooms) return;
  event.preventDefault();
  zoom(Math.exp(clamp(event.deltaY, -240, 240) * .0025), clamp(T(event.offsetX), VIEW.a, VIEW.b));
}

const pointers = new Map();
let drag = null;
function onDown(event) {
  pointers.set(event.pointerId, event.offsetX);
  if (event.button > 0) return;
  main.setPointerCapture(event.pointerId);
  if (pointers.size === 2) { const [p, q] = [...pointers.values()]; drag = { pinch: Math.abs(p - q), a: VIEW.a, b: VIEW.b, at: T((p + q) / 2) }; return; }
  drag = { x: event.offsetX, y: event.offsetY, a: VIEW.a, b: VIEW.b, moved: false, span: event.shiftKey };
}

function onMove(event) {
  VIEW.hover = { x: event.offsetX };
  if (!drag) { showTip(event.offsetX, event.offsetY); draw(); return; }
  pointers.set(event.pointerId, event.offsetX);
  $('tip').hidden = true;
  if (drag.pinch !== undefined) {
    if (pointers.size < 2) return;
    const [p, q] = [...pointers.values()], factor = drag.pinch / Math.max(8, Math.abs(p - q));
    setSpan(drag.at - (drag.at - drag.a) * factor, drag.at + (drag.b - drag.at) * factor); changed();
    return;
  }
  const by = event.offsetX - drag.x;
  if (Math.abs(by) > 3) drag.moved = true;
  if (drag.span) { drag.to = event.offsetX; draw(); requestAnimationFrame(spanShade); }
  else if (drag.moved) { const t = by / (RIGHT - LEFT) * (drag.b - drag.a); setSpan(drag.a - t, drag.b - t); changed(); }
}

function spanShade() {
  if (!drag || !drag.span || drag.to === undefined) return;
  const g = main.getContext('2d');
  g.fillStyle = COLOUR.accent; g.globalAlpha = .18; g.fillRect(Math.min(drag.x, drag.to), 0, Math.abs(drag.to - drag.x), HEIGHT); g.globalAlpha = 1;
}

function onUp(event) {
  pointers.delete(event.pointerId);
  const was = drag;
  drag = null;
  if (!was || was.pinch !== undefined) return;
  if (was.span && was.to !== undefined && Math.abs(was.to - was.x) > 4) { setSpan(T(Math.min(was.x, was.to)), T(Math.max(was.x, was.to))); changed(); }
  else if (!was.moved) select(find(was.x, was.y));
}

function onMini(event) {
  if (!(event.buttons & 1)) return;
  const t = (event.offsetX - LEFT) / (RIGHT - LEFT) * END, w = VIEW.b - VIEW.a;
  if (w >= END * .999) setSpan(t - END / 12, t + END / 12); else setSpan(t - w / 2, t + w / 2);
  changed();
}
