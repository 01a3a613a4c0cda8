"""Histories as others write them: EDN, Jepsen's log lines and our own Parquet, recognised by their content."""
