// What every page with evidence needs.  Values of a run go into text nodes only, never into markup.
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
// Paper has no folds: all is unfolded but the other violations of one kind, raw rows and texts to paste.
const unfolded = [];
addEventListener('beforeprint', () => {
  for (const fold of document.querySelectorAll('details:not([open])')) {
    if (fold.closest('.more-alike, .evidence') || fold.querySelector('.keys')) continue;
    fold.open = true; unfolded.push(fold);
  }
});
addEventListener('afterprint', () => { for (const fold of unfolded.splice(0)) fold.open = false; });
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
