"""One violation as a value: its operations, their order, its text; page, terminal and plain text render it."""
