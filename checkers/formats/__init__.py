"""Reads histories of several formats, recognised by their content: EDN, JSON, Jepsen's log lines, our own Parquet."""
