// Functions of every page with evidence.  Values of a run go into text nodes only, never into markup.
const root = document.documentElement;
root.classList.remove('nojs');
const DATA = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
// A bar of links or buttons is one stop of the tab key; arrows move within it.
function oneStop(bar) {
  const items = [...bar.querySelectorAll('a, button')];
  items.forEach((item, k) => { item.tabIndex = k ? -1 : 0; });
  bar.addEventListener('keydown', event => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key], at = items.indexOf(document.activeElement);
    if (!by || at < 0) return;
    event.preventDefault();
    const next = items[(at + by + items.length) % items.length];
    for (const item of items) item.tabIndex = item === next ? 0 : -1;
    next.focus();
  });
}
// Paper cannot be unfolded: the first violation of each kind is printed in full, with its cause; all other folds by summary.
const unfolded = [];
addEventListener('beforeprint', () => {
  for (const fold of document.querySelectorAll('details.kind:not([open])')) { fold.open = true; unfolded.push(fold); }
  const lines = [...document.querySelectorAll('.lines tr:not([hidden])')], at = lines.flatMap((line, k) => line.classList.contains('moment') ? k : []);
  lines.forEach((line, k) => line.classList.toggle('far', at.length ? at.every(n => Math.abs(n - k) > 12) : k >= 24));   // of a log the lines around
});
addEventListener('afterprint', () => { for (const fold of unfolded.splice(0)) fold.open = false; });
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
