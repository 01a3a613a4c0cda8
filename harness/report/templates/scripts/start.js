// Connect all parts of the page.
readColours();
for (const [k, name] of OPS.keys.entries()) $('key').append(element('option', { value: k + 1 }, name + (DATA.violations.some(v => v.key === name) ? ' (violated)' : '')));
if (!OPS.keys.length) $('key').parentElement.hidden = true;

function arrive() {
  const place = readAddress();
  if (place === null) return;
  if (OPS.keys.length) $('key').value = VIEW.key;
  draw();
  const target = $(place);
  if (target) target.scrollIntoView();
}
if (OPS.keys.length) $('key').value = VIEW.key;
arrive();
addEventListener('hashchange', arrive);

$('key').addEventListener('change', event => chooseKey(+event.target.value));
for (const [id, act] of Object.entries({
  'b-all': whole, 'b-violation': toViolation, 'b-previous': () => toFault(-1), 'b-next': () => toFault(1),
  'b-in': () => zoom(.6), 'b-out': () => zoom(1 / .6),
})) if ($(id)) $(id).addEventListener('click', act);
main.addEventListener('keydown', onKey);
main.addEventListener('wheel', onWheel, { passive: false });
main.addEventListener('pointerdown', onDown);
main.addEventListener('pointermove', onMove);
main.addEventListener('pointerup', onUp);
main.addEventListener('pointercancel', onUp);
main.addEventListener('pointerleave', () => { VIEW.hover = null; $('tip').hidden = true; draw(); });
main.addEventListener('dblclick', event => zoom(.4, T(event.offsetX)));
mini.addEventListener('pointerdown', event => { mini.setPointerCapture(event.pointerId); onMini(event); });
mini.addEventListener('pointermove', onMini);
oneStop(document.querySelector('nav'));
oneStop(document.querySelector('#timeline .bar'));
proofs();
if (LOG) for (const each of document.querySelectorAll('#logs input')) each.addEventListener('input', logs);
logs(); toMoment();
for (const media of ['(prefers-color-scheme: dark)', 'print']) matchMedia(media).addEventListener('change', () => { readColours(); draw(); });
new ResizeObserver(() => draw()).observe(main.parentElement);
draw();
root.dataset.ready = 'yes';
