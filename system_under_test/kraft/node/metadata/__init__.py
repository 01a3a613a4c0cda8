"""The metadata of a node: writes on their way to the core, what is committed, and who waits for it."""
