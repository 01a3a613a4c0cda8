"""The disk of a node, under one port: the real one, one that loses its power, and one with a planted bug."""
