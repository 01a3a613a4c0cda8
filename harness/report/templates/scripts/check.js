// A page of judged files: its proofs, and nothing else that moves.
proofs();
root.dataset.ready = 'yes';
