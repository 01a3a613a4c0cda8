"""The disk of a node, under one port: the real one, and one with a planted bug."""
