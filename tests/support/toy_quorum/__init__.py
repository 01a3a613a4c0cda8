"""A tiny replicated log that is correct by construction, and what a run of it leaves behind."""

from toy_quorum.evidence import OF_LOGS_AND_TRACES, Evidence, Row, measured
from toy_quorum.quorum import Entry, Quorum
from toy_quorum.runs import minority_commit, random_run, unfair_leader

__all__ = [
    "OF_LOGS_AND_TRACES",
    "Entry",
    "Evidence",
    "Quorum",
    "Row",
    "measured",
    "minority_commit",
    "random_run",
    "unfair_leader",
]
