"""Reads what nodes leave behind; shares no code with what wrote it."""
