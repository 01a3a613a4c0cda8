"""Pure compiled functions over arrays; no files and no verdicts."""
