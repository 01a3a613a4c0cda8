// The lines around a violation, filtered by time, source and text.  A span that was chosen on the timeline replaces the
// handle.
const LOG = (() => {
  const box = $('logs');
  if (!box) return null;
  return { at: +box.dataset.at, rows: [...box.querySelectorAll('tr')].map(row => ({ row, t: +row.cells[0].textContent, n: row.cells[1].textContent, text: row.textContent.toLowerCase() })) };
})();
const wholeRun = () => VIEW.a <= 0 && VIEW.b >= END;

function logs() {
  if (!LOG) return;
  const wide = $('log-wide').value / 1e3, chosen = !wholeRun(), [a, b] = chosen ? [VIEW.a, VIEW.b] : [LOG.at - wide, LOG.at + wide];
  const on = new Set([...document.querySelectorAll('#logs [data-source]:checked')].map(each => each.dataset.source));
  const text = $('log-text').value.toLowerCase();
  let shown = 0;
  for (const line of LOG.rows) {
    const show = line.t >= a && line.t <= b && on.has(line.n) && (!text || line.text.includes(text));
    line.row.hidden = !show; shown += show;
  }
  $('log-wide').disabled = chosen;
  $('log-span').textContent = chosen ? `as on the timeline: ${secs(a)} – ${secs(b)}` : wide >= 1 ? secs(wide, 2) : `${Math.round(wide * 1e3)} ms`;
  $('log-count').textContent = `${shown} of ${LOG.rows.length} lines`;
}

// Faults and events outside of the span that was chosen on the timeline are dimmed.
function outside() {
  const chosen = !wholeRun();
  for (const row of document.querySelectorAll('[data-from]')) row.hidden = chosen && (+row.dataset.to < VIEW.a || +row.dataset.from > VIEW.b);
  const note = $('fault-note');
  if (note) { const hidden = document.querySelectorAll('#faults tr[data-from][hidden]').length; note.textContent = hidden ? `${hidden} outside of the span that is chosen on the timeline ${hidden === 1 ? 'is' : 'are'} hidden.` : ''; }
}

function toMoment() {
  const row = document.querySelector('#logs .moment') || (LOG && LOG.rows.find(line => line.t >= LOG.at) || {}).row;
  const box = row && row.closest('.scroll');
  if (box) box.scrollTop = row.offsetTop - box.clientHeight / 2;
}
