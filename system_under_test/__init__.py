"""What answers: the Protocols every subject implements, and the subjects."""
