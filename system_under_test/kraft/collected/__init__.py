"""Reads files of nodes; shares no code with their writer."""
