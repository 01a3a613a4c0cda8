"""The base of every checker: the history, verdicts, the interface of a checker, and readers of a run's files."""
