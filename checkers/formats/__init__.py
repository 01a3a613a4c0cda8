"""Histories as others write them down: EDN, Jepsen's log lines, and our own Parquet, recognised by their content."""

from checkers.formats.recognise import read_any

__all__ = ["read_any"]
