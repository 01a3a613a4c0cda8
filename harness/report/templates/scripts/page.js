// What every page with evidence needs.  Values of a run go into text nodes only, never into markup.
const root = document.documentElement;
root.classList.remove('nojs');
const DATA = JSON.parse(document.getElementById('data').textContent);
const $ = id => document.getElementById(id);
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
