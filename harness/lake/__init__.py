"""The lake: facts of every run as Parquet tables, lists of runs, and SQL over all runs."""
