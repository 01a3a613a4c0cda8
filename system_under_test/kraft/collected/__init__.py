"""Readers of the files of nodes, which share no code with the writers of these files."""
