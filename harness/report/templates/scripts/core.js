// Small helpers, and the state of the view.
const END = DATA.end;
const TYPES = ['', 'ok', 'fail', 'info'];

// Columns are deflated, in little-endian order, as on every machine with a browser.
async function inflated(text) {
  const packed = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'))).arrayBuffer();
}

// Operations as columns; t: call, d: latency (seconds), sorted by t.
const OPS = await (async () => {
  const o = DATA.ops;
  const column = async (text, Kind) => new Kind(await inflated(text));
  const summed = deltas => { let x = 0; return Float64Array.from(deltas, d => x += d); };
  const values = async v => v && { v: await column(v.v, v.wide ? Float64Array : Int32Array), has: await column(v.has, Uint8Array) };
  const ops = {
    n: o.n, t: summed(await column(o.t, Uint32Array)).map(x => x * o.unit), d: Float64Array.from(await column(o.d, Uint32Array), x => x * o.unit),
    type: await column(o.type, Uint8Array), f: await column(o.f, Uint8Array), key: await column(o.key, Uint16Array), fate: await column(o.fate, Uint8Array), touch: await column(o.touch, Uint32Array), touched: await column(o.touched, Uint16Array),
    node: await column(o.node, Uint16Array), error: await column(o.error, Uint16Array), process: await column(o.process, Uint32Array),
    row: summed(await column(o.row, Int32Array)), miss: await column(o.miss, Uint8Array),
    value: await values(o.value), value2: await values(o.value2), fs: o.fs, keys: o.keys, nodes: o.nodes, errors: o.errors,
  };
  ops.longest = ops.d.reduce((a, b) => Math.max(a, b), 0);
  return ops;
})();

const lower = (a, x) => { let lo = 0, hi = a.length; while (lo < hi) { const m = (lo + hi) >> 1; if (a[m] < x) lo = m + 1; else hi = m; } return lo; };
const secs = (s, digits = 3) => s.toFixed(digits) + ' s';
const lasting = s => s >= 1 ? s.toFixed(2) + ' s' : s >= .001 ? (s * 1e3).toFixed(s < .01 ? 1 : 0) + ' ms' : (s * 1e6).toFixed(0) + ' µs';
const valueOf = (column, i) => column && column.has[i] ? String(column.v[i]) : 'nil';
const keyOf = i => OPS.key[i] ? OPS.keys[OPS.key[i] - 1] : '';
const errorOf = i => OPS.error[i] ? OPS.errors[OPS.error[i] - 1] : '';

function say(i) {
  const f = OPS.fs[OPS.f[i]];
  if (f === 'read') return OPS.type[i] === 1 ? 'read ' + valueOf(OPS.value, i) : 'read';
  if (f === 'cas') return 'cas ' + valueOf(OPS.value, i) + ' → ' + valueOf(OPS.value2, i);
  return OPS.value.has[i] && f !== 'txn' ? f + ' ' + valueOf(OPS.value, i) : f;
}

function element(tag, attributes = {}, text) {
  const e = document.createElement(tag);
  for (const name in attributes) e.setAttribute(name, attributes[name]);
  if (text !== undefined) e.textContent = text;
  return e;
}

// Colours come from the style sheet, so that the drawing follows the theme.
const COLOUR = {};
const NAMES = 'bg panel soft line ink dim accent bad ok ok-pale fail info band band-edge alone grid on-e n0 n1 n2 n3 n4 n5 n6 n7 n8'.split(' ');
function readColours() {
  const style = getComputedStyle(root);
  for (const name of NAMES) COLOUR[name] = style.getPropertyValue('--' + name).trim();
  COLOUR.sans = style.getPropertyValue('--sans').trim();
  for (const k in hatches) delete hatches[k];
}
const nodeColour = n => n < 0 ? COLOUR.dim : COLOUR['n' + n % 9];
const font = (weight = 400, px = 12) => `${weight} ${px}px ${COLOUR.sans}`;

const hatches = {};
function hatch(g, colour, gap) {
  const k = colour + gap;
  if (hatches[k]) return hatches[k];
  const ratio = window.devicePixelRatio || 1, c = element('canvas');
  c.width = c.height = Math.round(gap * ratio);
  const q = c.getContext('2d'), s = c.width;
  q.strokeStyle = colour; q.lineWidth = 1.3 * ratio; q.beginPath();
  for (const d of [-s, 0, s]) { q.moveTo(d - 1, s + 1); q.lineTo(d + s + 1, -1); }
  q.stroke();
  const p = g.createPattern(c, 'repeat');
  p.setTransform(new DOMMatrix().scale(1 / ratio));
  return hatches[k] = p;
}

// The view: a span of time, a key, a selection.  All three live in the address: #timeline?t=a-b&key=k&sel=kind.n
const usualSel = DATA.violations.length ? 'violation.0' : '';
const OPENS = Math.max(0, Math.min(DATA.main - 1, END - 1));   // what set-up took is not shown at first
const VIEW = { a: OPENS, b: END, key: 0, sel: usualSel, hover: null };
const LEAST = .002;
const busiestKey = () => {
  const count = new Uint32Array(OPS.keys.length + 1);
  for (const column of [OPS.key, OPS.touched]) for (const k of column) count[k]++;
  let best = OPS.keys.length ? 1 : 0;
  for (let k = 1; k < count.length; k++) if (count[k] > count[best]) best = k;
  return best;
};
const usualKey = (() => {
  const v = DATA.violations.find(v => v.key !== null && OPS.keys.includes(v.key));
  return v ? OPS.keys.indexOf(v.key) + 1 : busiestKey();
})();
VIEW.key = usualKey;

function setSpan(a, b) {
  const width = clamp(b - a, LEAST, END);
  VIEW.a = clamp(a, 0, END - width);
  VIEW.b = VIEW.a + width;
}

function readAddress() {
  let hash = location.hash.slice(1);
  try { hash = decodeURIComponent(hash); } catch { hash = ''; }
  const [place, query] = hash.split('?');
  if (query === undefined) return null;
  const wanted = new URLSearchParams(query);
  const span = /^(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/.exec(wanted.get('t') || '');
  if (span && +span[1] < +span[2]) setSpan(+span[1], +span[2]); else setSpan(OPENS, END);
  const key = OPS.keys.indexOf(wanted.get('key'));
  VIEW.key = key >= 0 ? key + 1 : usualKey;
  const sel = wanted.get('sel') ?? usualSel;
  const finding = /^finding\.(\d+)$/.exec(sel);
  VIEW.sel = finding ? 'violation.' + DATA.violations.findIndex(v => v.anchor === 'finding-' + finding[1])
    : /^(op|fault|role|violation)\.\d+$/.test(sel) ? sel : '';
  return /^[\w-]+$/.test(place) ? place : 'timeline';
}

let addressTimer;
function writeAddress() {
  clearTimeout(addressTimer);
  addressTimer = setTimeout(() => {
    const parts = [];
    if (Math.abs(VIEW.a - OPENS) > 1e-6 || VIEW.b < END) parts.push(`t=${+VIEW.a.toFixed(4)}-${+VIEW.b.toFixed(4)}`);
    if (VIEW.key !== usualKey) parts.push('key=' + encodeURIComponent(OPS.keys[VIEW.key - 1]));
    if (VIEW.sel !== usualSel) parts.push('sel=' + VIEW.sel);
    try { history.replaceState(null, '', '#timeline' + (parts.length ? '?' + parts.join('&') : '')); } catch { /* a browser may limit the number of calls */ }
  }, 120);
}
