// The stepper of a witness: hides everything after the current step; without script everything is shown.
function stepper(drawing) {
  const box = drawing.querySelector('.step.js');
  if (!box) return;
  const slider = box.querySelector('input'), line = box.querySelector('p'), n = drawing.dataset.finding;
  const steps = DATA.steps[n] || [], last = +drawing.dataset.last, article = drawing.closest('article');
  const show = () => {
    const step = +slider.value;
    for (const e of drawing.querySelectorAll('[data-step]')) e.classList.toggle('later', +e.dataset.step > step);
    for (const e of article.querySelectorAll('.story [data-step], .story .bad')) e.classList.toggle('now', (+e.dataset.step || last) === step);
    line.textContent = step === 0 ? `Before the first operation of this window${drawing.dataset.before ? ': the object holds ' + drawing.dataset.before : ''}.` : `Step ${step} of ${steps.length}. ${steps[step - 1] ?? ''}`;
    line.className = step === last && article.querySelector('.story .bad') ? 'bad' : '';
  };
  const move = by => { slider.value = clamp(+slider.value + by, 0, steps.length); show(); };
  slider.addEventListener('input', show);
  box.querySelector('.back').addEventListener('click', () => move(-1));
  box.querySelector('.on').addEventListener('click', () => move(1));
  show();
}

function copy(button) {
  const text = $(button.dataset.copy).textContent;
  const done = word => { button.textContent = word; setTimeout(() => { button.textContent = 'Copy'; }, 1200); };
  const byHand = () => { getSelection().selectAllChildren($(button.dataset.copy)); done('Selected'); };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(() => done('Copied'), byHand); else byHand();
}

// A link to an element inside a folded part unfolds that part.
function unfold(id) {
  for (let at = $(id); at; at = at.parentElement) if (at.tagName === 'DETAILS') at.open = true;
  const own = $(id) && $(id).matches('.finding') && $(id).querySelector(':scope > details.folded');
  if (own) own.open = true;
}

function proofs() {
  const arrived = () => { const id = location.hash.slice(1); if (/^[\w-]+$/.test(id) && $(id) && $(id).closest('details, .finding')) { unfold(id); $(id).scrollIntoView(); } };
  addEventListener('hashchange', arrived);
  arrived();
  for (const button of document.querySelectorAll('[data-copy]')) button.addEventListener('click', () => copy(button));
  for (const drawing of document.querySelectorAll('.drawing')) stepper(drawing);
}
