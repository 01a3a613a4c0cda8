"""Reads histories of several formats, recognized by their content: EDN, JSON, Jepsen's log, Krucible's Parquet."""
