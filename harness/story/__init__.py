"""One violation as a value: its operations, their order, its words; page, terminal and plain text render it."""
