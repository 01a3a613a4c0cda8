// A page of judged files: only its proofs are interactive.
proofs();
root.dataset.ready = 'yes';
