// Operations of clients: rates, latencies of all operations, and the operations on one key as bars.
const visible = () => [lower(OPS.t, VIEW.a - OPS.longest), lower(OPS.t, VIEW.b)];

// Elements that clients added, at the time of the answer, in the row of the answering server: kept above, unknown between,
// lost below.  Neighbours are drawn at different heights, so none hides another.
const PUT_AT = [...new Set(OPS.node.filter((_, i) => OPS.fate[i]))].sort((a, b) => OPS.nodes[a].localeCompare(OPS.nodes[b], 'en', { numeric: true }));
const ELEMENT_ROW = 28;
function elementLane(g) {
  const { y, h } = LANES.get('elements'), row = ELEMENT_ROW, top = y + 20;
  PUT_AT.forEach((node, k) => scaleMark(g, top + row * k + row / 2, fitted(g, OPS.nodes[node] || 'none', LEFT - 8), false));
  clipped(g, y, h, () => {
    for (const [fate, at, colour] of [[1, 6, COLOUR.ok], [3, 13, COLOUR.info], [2, 20, COLOUR.bad]]) {
      g.fillStyle = colour;
      for (let i = 0; i < OPS.n; i++) if (OPS.fate[i] === fate) g.fillRect(X(OPS.t[i] + OPS.d[i]) - 1, top + row * PUT_AT.indexOf(OPS.node[i]) + at + i % 5 - 3, 2.6, 2.6);
    }
  });
  laneTitle(g, 'elements', 'elements, by the server that answered: kept above, unknown between, lost below');
}

function rateLane(g) {
  const { y, h } = LANES.get('rate'), r = DATA.rate, px = RIGHT - LEFT;
  const per = Math.max(1, Math.ceil((VIEW.b - VIEW.a) / r.step / (px / (NARROW() ? 7 : 11)))), width = per * r.step;
  const first = Math.floor(VIEW.a / width), last = Math.ceil(VIEW.b / width), bars = [];
  let up = 1, down = 0;
  for (let k = first; k < last; k++) {
    const sum = { ok: 0, miss: 0, fail: 0, info: 0 };
    for (let i = k * per; i < Math.min((k + 1) * per, r.ok.length); i++) for (const type in sum) sum[type] += r[type][i];
    for (const type in sum) sum[type] /= width;
    up = Math.max(up, sum.ok + sum.miss); down = Math.max(down, sum.fail + sum.info);
    bars.push([k, sum]);
  }
  up = round125(up);
  const top = y + 18, bottom = y + h - 2, zero = top + (bottom - top) * up / (up + Math.max(down, up * .12)), unit = (zero - top) / up;
  clipped(g, y, h, () => {
    for (const [k, s] of bars) {
      const x = X(k * width) + .4, w = Math.max(.7, px * width / (VIEW.b - VIEW.a) - .8);
      let base = zero;
      const bar = (v, colour, sign) => { if (!v) return; const d = Math.max(v * unit, sign < 0 ? 1.5 : .5); g.fillStyle = colour; g.fillRect(x, sign > 0 ? base - d : base, w, d); base -= sign * d; };
      bar(s.ok, COLOUR.ok, 1); bar(s.miss, COLOUR['ok-pale'], 1);
      base = zero; bar(s.fail, COLOUR.fail, -1); bar(s.info, COLOUR.info, -1);
    }
  });
  g.fillStyle = COLOUR.dim; g.fillRect(LEFT, Math.round(zero), px, 1);
  scaleMark(g, top, up.toLocaleString('en'), true); scaleMark(g, zero, '0', false);
  laneTitle(g, 'rate', `operations per second, by outcome: answered upwards, fail and info downwards`);
}

// Latency at the time of the call, logarithmic.  Many ok answers become a density, few become dots; others are always drawn.
function latencyLane(g) {
  const { y, h } = LANES.get('latency'), top = y + 20, bottom = y + h - 3;
  const low = LOWEST, high = Math.max(1, Math.ceil(Math.log10(Math.max(OPS.longest, .01) * 1e3)));   // powers of ten, ms
  const at = d => bottom - (clamp(Math.log10(Math.max(d * 1e3, 1e-3)), low, high) - low) / (high - low) * (bottom - top);
  for (let p = low; p <= high; p += 1) if ((p - low) % (high - low > 5 ? 2 : 1) === 0) scaleMark(g, at(10 ** p / 1e3), p < 0 ? String(10 ** p) : p > 3 ? 10 ** (p - 3) + 'k' : (10 ** p).toLocaleString('en'), true);
  const [i0, i1] = visible(), marks = [];
  clipped(g, y, h, () => {
    if (i1 - i0 > 1500) density(g, i0, i1, at, marks, top, bottom);
    else for (let i = i0; i < i1; i++) (OPS.type[i] === 1 || OPS.miss[i] ? dot(g, X(OPS.t[i]), at(OPS.d[i]), i, 2) : marks.push(i));
    const thin = Math.max(1, Math.floor(marks.length / 4000));
    marks.forEach((i, k) => { if (k % thin === 0) dot(g, X(OPS.t[i]), at(OPS.d[i]), i, 2.6); });
    if (VIEW.sel.startsWith('op.')) { const i = +VIEW.sel.slice(3); if (i < OPS.n) ring(g, X(OPS.t[i]), at(OPS.d[i])); }
  });
  quantiles(g, i0, i1, at, y, h);
  latencyAt = at;
  laneTitle(g, 'latency', 'latency of every operation, ms, logarithmic, at the time of its call; lines: median and 95th percentile of the answered ones');
}

function quantiles(g, i0, i1, at, y, h) {
  const bins = new Map(), wide = 14;
  for (let i = i0; i < i1; i++) if (OPS.type[i] === 1 || OPS.miss[i]) { const b = Math.floor((X(OPS.t[i]) - LEFT) / wide); bins.has(b) ? bins.get(b).push(OPS.d[i]) : bins.set(b, [OPS.d[i]]); }
  clipped(g, y, h, () => {
    g.fillStyle = COLOUR.ink;
    for (const [b, some] of bins) {
      if (some.length < 3) continue;   // too few for a quantile
      some.sort((p, q) => p - q);
      for (const [share, tall] of [[.5, 1.6], [.95, 1]]) g.fillRect(LEFT + b * wide, at(some[Math.floor(share * (some.length - 1))]) - tall / 2, wide - 1, tall);
    }
  });
}
let latencyAt = null;
const LOWEST = clamp(Math.floor(Math.log10(Math.max(1e-6, OPS.d.reduce((a, b) => b > 0 && b < a ? b : a, 1)) * 1e3)), -2, 0);

function density(g, i0, i1, at, marks, top, bottom) {
  const cell = 2, columns = Math.max(0, Math.ceil((RIGHT - LEFT) / cell) + 1), rows = Math.max(0, Math.ceil((bottom - top) / cell) + 1);
  const count = new Uint16Array(columns * rows);
  for (let i = i0; i < i1; i++) {
    if (OPS.type[i] !== 1 && !OPS.miss[i]) { marks.push(i); continue; }
    const c = Math.floor((X(OPS.t[i]) - LEFT) / cell);
    if (c >= 0 && c < columns) count[Math.min(rows - 1, Math.floor((at(OPS.d[i]) - top) / cell)) * columns + c]++;
  }
  g.fillStyle = COLOUR.ok;
  for (const [least, most, alpha] of [[1, 1, .42], [2, 3, .68], [4, 65535, .95]]) {
    g.globalAlpha = alpha;
    for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) { const n = count[r * columns + c]; if (n >= least && n <= most) g.fillRect(LEFT + c * cell, top + r * cell, cell, cell); }
  }
  g.globalAlpha = 1;
}

function dot(g, x, y, i, r) {
  const type = OPS.type[i];
  if (type === 1) { g.fillStyle = COLOUR.ok; g.beginPath(); g.arc(x, y, r, 0, 7); g.fill(); }
  else if (OPS.miss[i]) { g.strokeStyle = COLOUR.ok; g.beginPath(); g.arc(x, y, r, 0, 7); g.stroke(); }
  else if (type === 2) { g.fillStyle = COLOUR.fail; g.beginPath(); g.moveTo(x, y - r * 1.3); g.lineTo(x + r * 1.25, y + r); g.lineTo(x - r * 1.25, y + r); g.fill(); }
  else { g.strokeStyle = COLOUR.info; g.lineWidth = 1.6; g.strokeRect(x - r, y - r, 2 * r, 2 * r); g.lineWidth = 1; }
}

function ring(g, x, y) { g.strokeStyle = COLOUR.accent; g.lineWidth = 2; g.beginPath(); g.arc(x, y, 7, 0, 7); g.stroke(); g.lineWidth = 1; }

// The operations of the chosen key, stacked so that none hides another.
let KEY_OPS = { key: -1, ops: [], row: null, rows: 1 };
function keyOps() {
  if (KEY_OPS.key === VIEW.key) return KEY_OPS;
  const ops = [], naming = new Set(OPS.touch.filter((_, k) => OPS.touched[k] === VIEW.key));   // transactions that name it
  for (let i = 0; i < OPS.n; i++) if (OPS.key[i] === VIEW.key || naming.has(i)) ops.push(i);
  const free = [], row = new Uint8Array(ops.length);
  ops.forEach((i, k) => {
    let r = free.findIndex(end => end <= OPS.t[i]);
    if (r < 0) r = free.length < 7 ? free.length : free.indexOf(Math.min(...free));
    free[r] = OPS.t[i] + OPS.d[i]; row[k] = r;
  });
  return KEY_OPS = { key: VIEW.key, ops, row, rows: Math.max(1, free.length) };
}

function keyLane(g) {
  const { y, h } = LANES.get('key'), { ops, row, rows } = keyOps(), top = y + 19, each = (h - 20) / Math.max(rows, 4), tall = Math.min(13, each - 2);
  const bad = new Set(DATA.violations.filter(v => v.key === OPS.keys[VIEW.key - 1]).map(v => v.t));
  clipped(g, y, h, () => ops.forEach((i, k) => {
    const t = OPS.t[i], end = t + OPS.d[i];
    if (end < VIEW.a || t > VIEW.b) return;
    const x = X(t), w = Math.max(1.6, X(end) - x), yy = top + row[k] * each, read = OPS.fs[OPS.f[i]] === 'read';
    const wrong = OPS.type[i] === 1 && read && [...bad].some(b => Math.abs(b - end) < 2e-6);
    const colour = wrong ? COLOUR.bad : OPS.type[i] === 1 || OPS.miss[i] ? COLOUR.ok : OPS.type[i] === 2 ? COLOUR.fail : COLOUR.info;
    g.fillStyle = colour; g.strokeStyle = colour;
    if (read && w > 4 && !wrong) { g.globalAlpha = .22; g.fillRect(x, yy, w, tall); g.globalAlpha = 1; g.strokeRect(x + .5, yy + .5, w - 1, tall - 1); }
    else { g.globalAlpha = read && !wrong ? .5 : 1; g.fillRect(x, yy, w, tall); g.globalAlpha = 1; }
    if (VIEW.sel === 'op.' + i) { g.strokeStyle = COLOUR.accent; g.lineWidth = 2; g.strokeRect(x - 1, yy - 1, w + 2, tall + 2); g.lineWidth = 1; }
    HITS.push({ x0: x - 1, x1: x + w + 1, y0: yy - 1, y1: yy + tall + 1, sel: 'op.' + i });
    const text = say(i);
    if (w > 26 && g.measureText(text).width + 8 < Math.min(x + w, RIGHT) - Math.max(x, LEFT)) {
      g.textAlign = 'left'; g.fillStyle = read && !wrong ? COLOUR.ink : COLOUR.panel; g.fillText(text, Math.max(x, LEFT) + 4, yy + tall / 2 + .5);
    }
  }));
  laneTitle(g, 'key', `operations on key ${OPS.keys[VIEW.key - 1] ?? ''}: writes full, reads pale`);
}
