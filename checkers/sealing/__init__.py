"""Sealing: turns the stream of a run into the files that checkers read."""
