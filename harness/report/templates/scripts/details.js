// The description of the selection, and the small cards beside the pointer.
function find(x, y) {
  for (let k = HITS.length - 1; k >= 0; k--) {
    const h = HITS[k];
    if (x >= h.x0 && x <= h.x1 && y >= h.y0 && y <= h.y1) return h.sel;
  }
  const lane = LANES.get('latency');
  if (!lane || y < lane.y || y > lane.y + lane.h) return '';
  let best = '', near = 8;
  const [i0, i1] = visible(), from = T(x - 9), to = T(x + 9);
  for (let i = i0; i < i1; i++) {
    if (OPS.t[i] < from || OPS.t[i] > to) continue;
    const d = Math.hypot(X(OPS.t[i]) - x, latencyAt(OPS.d[i]) - y);
    if (d < near) { near = d; best = 'op.' + i; }
  }
  return best;
}

// A selection as [title, sentence, anchor].
function words(sel) {
  const [kind, number] = sel.split('.'), i = +number;
  if (kind === 'op' && i < OPS.n) {
    const type = OPS.miss[i] ? 'answered: it did not match' : ['', 'ok', 'fail: it certainly did not happen', 'info: outcome unknown'][OPS.type[i]];
    const error = errorOf(i), at = OPS.nodes[OPS.node[i]];
    return [say(i) + (keyOf(i) && ', key ' + keyOf(i)), `Process ${OPS.process[i]}${at ? ' at ' + at : ''}, ${secs(OPS.t[i])} to ${secs(OPS.t[i] + OPS.d[i])} (${lasting(OPS.d[i])}): ${type}${error && !OPS.miss[i] ? ' (' + error + ')' : ''}. History row ${OPS.row[i].toLocaleString('en')}.`, null];
  }
  if (kind === 'fault') {
    const k = DATA.faults.findIndex(f => f.n === i), f = DATA.faults[k];
    if (f) return [`Fault ${f.n}: ${f.name}`, `${f.words || f.kind}; ${secs(f.start)} to ${secs(f.end)}, ${f.achieved}.`, 'fault-' + (k + 1)];
  }
  if (kind === 'role' && DATA.segments[i]) {
    const [node, a, b, role, epoch, leader] = DATA.segments[i];
    if (role === 'unknown') return [`${DATA.servers[node]}: its role is not known`, `${secs(a)} to ${secs(b)}: ${leader}.`, null];
    const what = role === 'dead' ? 'is not running' : role === 'leader' ? `leads epoch ${epoch}` : `is ${role} in epoch ${epoch}${leader && leader !== DATA.servers[node] ? ', leader ' + leader : ''}`;
    return [`${DATA.servers[node]} ${what}`, `${secs(a)} to ${secs(b)}, for ${lasting(b - a)}.`, null];
  }
  if (kind === 'violation' && DATA.violations[i]) {
    const v = DATA.violations[i];
    return [`Violation: ${v.text}`, `At ${secs(v.t)}.`, v.anchor];
  }
  return null;
}

function describe() {
  const p = $('sel'), shown = VIEW.sel && words(VIEW.sel);
  const text = shown ? shown.join('|') : '';
  if (p.dataset.shown === text) return;
  p.dataset.shown = text;
  p.className = shown ? 'js on' : 'js';
  p.textContent = shown ? '' : 'Nothing is selected. Point at anything to see a description; click to keep the description.';
  if (!shown) return;
  p.append(element('b', {}, shown[0]), '. ' + shown[1] + ' ');
  if (shown[2]) p.append(element('a', { href: '#' + shown[2] }, 'More about it'));
}

function showTip(x, y) {
  const tip = $('tip'), sel = find(x, y), shown = sel && words(sel);
  main.style.cursor = shown ? 'pointer' : 'crosshair';
  if (!shown) { tip.hidden = true; return; }
  tip.replaceChildren(element('b', {}, shown[0]), shown[1]);
  tip.hidden = false;
  const left = clamp(x + 14, 4, W - tip.offsetWidth - 4), top = mini.offsetHeight + y + 18;
  tip.style.left = left + 'px'; tip.style.top = top + 'px';
}
