"""Pure compiled functions over arrays, which read no files and return no verdicts."""
