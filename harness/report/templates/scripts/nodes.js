// The nodes: roles by epoch, deposed leaders, paused and dead processes; and their high watermarks.
const MARKS = DATA.marks.of.map(deltas => { if (!deltas) return null; let x = 0; return Int32Array.from(deltas, d => x += d); });
const HIGHEST = (() => {
  const some = MARKS.filter(s => s);
  if (!some.length) return null;
  let best = 0;
  return Int32Array.from(some[0], (_, i) => best = Math.max(best, ...some.map(s => s[i])));
})();

function nodeLane(g, n) {
  const { y, h } = LANES.get('node' + n), mid = y + h / 2;
  g.font = font(600, 12); g.textAlign = 'right'; g.fillStyle = COLOUR.ink;
  g.fillText(fitted(g, DATA.servers[n], LEFT - 22), LEFT - 8, mid); g.font = font();
  g.fillStyle = nodeColour(n); g.beginPath(); g.arc(8, mid, 4, 0, 7); g.fill();
  clipped(g, y, h, () => {
    for (const f of DATA.faults) if (f.alone.includes(n)) { g.fillStyle = COLOUR.alone; g.fillRect(X(f.start), y + 1, X(f.end) - X(f.start), h - 2); }
    DATA.segments.forEach((s, i) => {
      if (s[0] !== n || s[2] < VIEW.a || s[1] > VIEW.b) return;
      role(g, s, y, h, mid);
      const a = Math.max(LEFT, X(s[1])), b = Math.min(RIGHT, X(s[2]));
      HITS.push({ x0: a, x1: Math.max(b, a + 2), y0: y, y1: y + h, sel: 'role.' + i });
      if (VIEW.sel === 'role.' + i) { g.strokeStyle = COLOUR.accent; g.lineWidth = 2; g.strokeRect(X(s[1]), mid - 11, Math.max(3, X(s[2]) - X(s[1])), 22); g.lineWidth = 1; }
    });
    for (const [node, start, end, epoch] of DATA.deposed) if (node === n) deposedMark(g, X(start), X(end), mid, epoch);
    for (const f of DATA.faults) for (const [node, state] of f.nodes) if (node === n) hit(g, n, f, state, y, h, mid);
  });
}

// Effect of a fault on a node: a process that does not run (a dead one is drawn with the roles), or a mark below.
function hit(g, n, f, state, y, h, mid) {
  if (state === 'stopped' || state === 'paused') { gone(g, X(f.start), X(f.end), mid, 'paused'); return; }
  if (state === 'dead') {
    const drawn = DATA.segments.some(s => s[0] === n && s[3] === 'dead' && s[1] < f.end && s[2] > f.start);
    if (!drawn) gone(g, X(f.start), X(f.end), mid, 'not running');
    return;
  }
  g.fillStyle = COLOUR['band-edge']; g.fillRect(X(f.start), y + h - 4, Math.max(2, X(f.end) - X(f.start)), 3);
}

// A node has one colour; a follower's line has the colour of its leader.
function role(g, [n, start, end, name, epoch, leader], y, h, mid) {
  const a = X(start), w = X(end) - a, left = Math.max(a, LEFT), room = Math.min(a + w, RIGHT) - left, colour = nodeColour(n);
  if (name === 'dead') gone(g, a, a + w, mid, 'not running');
  else if (name === 'leader') {
    g.fillStyle = colour; g.fillRect(a, mid - 9, Math.max(w, 2), 18);
    const replaced = DATA.deposed.find(([node, from, to]) => node === n && from < end && to > start);   // named by deposedMark
    label(g, [`leader, epoch ${epoch}`, `epoch ${epoch}`, `e${epoch}`], left, replaced ? Math.min(room, X(replaced[1]) - left) : room, mid, COLOUR['on-e']);
  } else if (name === 'follower') { g.fillStyle = nodeColour(DATA.servers.indexOf(leader)); g.fillRect(a, mid - 1.5, w, 3); }
  else if (name === 'candidate' || name === 'prospective') {
    g.fillStyle = COLOUR.panel; g.fillRect(a, mid - 6, w, 12);
    g.fillStyle = hatch(g, colour, 6); g.fillRect(a, mid - 6, w, 12);
    g.strokeStyle = colour; g.strokeRect(a + .5, mid - 5.5, Math.max(1, w - 1), 11);
    noted(g, [`candidate, epoch ${epoch}`, `epoch ${epoch}`], left, room, mid);
  } else if (name === 'unknown') {   // nothing is drawn but that nothing is known
    g.strokeStyle = COLOUR.dim; g.setLineDash([1, 5]); g.strokeRect(a + .5, mid - 8.5, Math.max(1, w - 1), 17); g.setLineDash([]);
    label(g, ['not known', '?'], left, room, mid, COLOUR.dim);
  } else if (NO_LEADER.has(name)) {
    g.strokeStyle = COLOUR.dim; g.setLineDash([3, 3]); g.beginPath(); g.moveTo(a, mid); g.lineTo(a + w, mid); g.stroke(); g.setLineDash([]);
  } else {   // a role that the system itself names
    g.strokeStyle = colour; g.strokeRect(a + .5, mid - 6.5, Math.max(1, w - 1), 13);
    label(g, [name], left, room, mid, COLOUR.ink);
  }
}
const NO_LEADER = new Set(['unattached', 'resigned', '']);

function deposedMark(g, a, b, mid, epoch) {
  g.fillStyle = hatch(g, COLOUR.panel, 7); g.fillRect(a, mid - 9, b - a, 18);
  g.strokeStyle = COLOUR.ink; g.strokeRect(a + .5, mid - 8.5, Math.max(1, b - a - 1), 17);
  const left = Math.max(a, LEFT);
  noted(g, [`epoch ${epoch}: deposed, without knowing it`, `epoch ${epoch}: deposed`, 'deposed'], left, Math.min(b, RIGHT) - left, mid);
}

// Words on a plain background, above hatching.
function noted(g, choices, left, room, mid) {
  const text = choices.find(c => g.measureText(c).width + 14 <= room);
  if (text === undefined) return;
  g.fillStyle = COLOUR.panel; g.fillRect(left + 5, mid - 7, g.measureText(text).width + 8, 14);
  label(g, [text], left + 3, room, mid, COLOUR.ink);
}

function gone(g, a, b, mid, word) {
  g.fillStyle = COLOUR.line; g.fillRect(a, mid - 9, b - a, 18);
  g.strokeStyle = COLOUR.dim; g.strokeRect(a + .5, mid - 8.5, Math.max(1, b - a - 1), 17);
  label(g, [word, '×'], Math.max(a, LEFT), Math.min(b, RIGHT) - Math.max(a, LEFT), mid, COLOUR.ink);
}

function label(g, choices, left, room, mid, colour) {
  const text = choices.find(c => g.measureText(c).width + 12 <= room);
  if (text === undefined) return;
  g.fillStyle = colour; g.textAlign = 'left'; g.fillText(text, left + 6, mid + .5);
}

function fitted(g, text, room) {
  while (text.length > 1 && g.measureText(text).width > room) text = text.slice(0, -1);
  return text;
}

// The highest high watermark of any node: while the line is flat, nothing is committed.
function markLane(g) {
  const { y, h } = LANES.get('mark'), step = DATA.marks.step, top = y + 18, bottom = y + h - 2;
  const first = clamp(Math.floor(VIEW.a / step) - 1, 0, HIGHEST.length - 1), last = clamp(Math.ceil(VIEW.b / step), 0, HIGHEST.length - 1);
  const low = HIGHEST[first], high = Math.max(HIGHEST[last], low + 1), at = v => bottom - (v - low) / (high - low) * (bottom - top);
  stairs(g, HIGHEST, first, last, at, y, h, COLOUR.ink, 1.4);
  scaleMark(g, bottom, low.toLocaleString('en'), true);
  scaleMark(g, top, high.toLocaleString('en'), true);
  laneTitle(g, 'mark', 'highest high watermark: committed entries (flat: nothing is committed)');
}

// Lag of each node behind the highest mark; a node that knows no mark has a gap.
function lagLane(g) {
  const { y, h } = LANES.get('lag'), step = DATA.marks.step, top = y + 18, bottom = y + h - 2;
  const first = clamp(Math.floor(VIEW.a / step) - 1, 0, HIGHEST.length - 1), last = clamp(Math.ceil(VIEW.b / step), 0, HIGHEST.length - 1);
  let most = 1;
  const behind = MARKS.map(s => s && Int32Array.from(s, (v, i) => v < 0 ? -1 : HIGHEST[i] - v));
  for (const s of behind) if (s) for (let i = first; i <= last; i++) most = Math.max(most, s[i]);
  most = round125(most);
  const at = v => v < 0 ? null : bottom - v / most * (bottom - top);
  const peaks = [];
  behind.forEach((s, n) => {
    if (!s) return;
    stairs(g, s, first, last, at, y, h, COLOUR.dim, 1.1);
    let peak = first;
    for (let i = first; i <= last; i++) if (s[i] > s[peak]) peak = i;
    if (s[peak] > most / 5) peaks.push({ x: X((peak + 1) * step), y: at(s[peak]), name: DATA.servers[n] });
  });
  scaleMark(g, bottom, '0', true); scaleMark(g, top, most.toLocaleString('en'), true);
  laneTitle(g, 'lag', 'number of entries by which each node’s high watermark lags behind the highest');
  peaks.sort((a, b) => a.x - b.x);
  let right = -1;
  for (const p of peaks) {
    g.font = font(600); const w = g.measureText(p.name).width, x = clamp(p.x - w - 6, LEFT + 2, RIGHT - w - 2);
    if (x < right) continue;
    g.fillStyle = COLOUR.panel; g.globalAlpha = .85; g.fillRect(x - 2, p.y - 5, w + 4, 13); g.globalAlpha = 1;
    g.textAlign = 'left'; g.fillStyle = COLOUR.ink; g.fillText(p.name, x, p.y + 2); right = x + w + 4;
  }
  g.font = font();
}

function stairs(g, series, first, last, at, y, h, colour, width) {
  clipped(g, y, h, () => {
    g.strokeStyle = colour; g.lineWidth = width; g.beginPath();
    let pen = false;
    for (let i = first; i <= last; i++) {
      const v = at(series[i]), x0 = X(i * DATA.marks.step), x1 = X((i + 1) * DATA.marks.step);
      if (v === null) { pen = false; continue; }
      if (pen) g.lineTo(x0, v); else g.moveTo(x0, v);
      g.lineTo(x1, v); pen = true;
    }
    g.stroke(); g.lineWidth = 1;
  });
}
