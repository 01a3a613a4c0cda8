// Looked at from within the page by test_report_browser.py; each is called by its name.
({
  // Elements with words that reach beyond the window without a scrolling box around them.
  outside() {
    const out = [];
    for (const e of document.querySelectorAll('main *, header *')) {
      const box = e.getBoundingClientRect();
      if (!box.width || !e.textContent.trim() || e.closest('.scroll, nav, .cmd, pre, .hidden-words')) continue;
      if (box.right > innerWidth + 1 || box.left < -1)
        out.push(`${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 40)}`);
    }
    return out.slice(0, 5);
  },

  // Text whose contrast with what lies behind it is below AA: 4.5, or 3 where it is large.
  faint() {
    const colour = text => {
      const mixed = /^color\(srgb ([^)/]+)/.exec(text);
      if (mixed) return [...mixed[1].trim().split(/\s+/).map(x => x * 255), 1];
      const plain = /^rgba?\(([^)]+)\)/.exec(text);
      if (!plain) return null;
      const v = plain[1].split(/[ ,/]+/).map(Number);
      return [v[0], v[1], v[2], v[3] ?? 1];
    };
    const light = c => {
      const f = c.slice(0, 3).map(v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
      return .2126 * f[0] + .7152 * f[1] + .0722 * f[2];
    };
    const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
    const behind = e => {
      for (let at = e; at; at = at.parentElement) {
        const c = colour(getComputedStyle(at).backgroundColor);
        if (c && c[3] > .99) return c;
      }
      return [255, 255, 255, 1];
    };
    const out = [];
    for (const e of document.querySelectorAll('body *')) {
      const has = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
      if (!has || !e.getBoundingClientRect().width || e.closest('script, style, option, title, .dot')) continue;
      const style = getComputedStyle(e), svg = e instanceof SVGElement, ink = colour(svg ? style.fill : style.color);
      if (!ink || style.visibility === 'hidden' || ink[3] < .01) continue;
      const px = parseFloat(style.fontSize), large = px >= 24 || (px >= 18.66 && style.fontWeight >= 700);
      const r = ratio(ink, behind(svg ? e.closest('svg').parentElement : e));
      if (r < (large ? 3 : 4.5))
        out.push(`${r.toFixed(2)} ${e.tagName}.${e.className.baseVal ?? e.className}: ${e.textContent.trim().slice(0, 30)}`);
    }
    return out.slice(0, 8);
  },

  // Median milliseconds of two frames while zooming in and out by keys.
  async frames() {
    const tl = document.getElementById('tl'), frame = () => new Promise(done => requestAnimationFrame(done)), spent = [];
    for (let k = 0; k < 12; k++) {
      const began = performance.now();
      tl.dispatchEvent(new KeyboardEvent('keydown', { key: k < 8 ? '+' : '-' }));
      await frame(); await frame();
      spent.push(performance.now() - began);
    }
    return spent.sort((a, b) => a - b)[6];
  },
})
