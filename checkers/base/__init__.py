"""The base of every checker: the history, verdicts, what a checker is, and how the files of a run are read."""
