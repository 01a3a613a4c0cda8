"""Reads histories of several formats: EDN, Jepsen's log lines and our own Parquet, recognised by their content."""
