"""Code that runs one test: it conducts the phases, records the history, and keeps the files."""
