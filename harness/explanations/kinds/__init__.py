"""Every kind of violation: how near it lies to its cause, and two sentences that explain it."""
