"""A vote is kept for as long as its epoch lasts: what a node's quorum-state holds after the vote was cast.

Ongaro & Ousterhout 2014, figure 2 (persistent state).  A voter that forgets its vote can vote again in the same epoch.
It does so only if another candidate of that epoch asks in the short time before the next epoch.  So a second vote is
rare where the first one is often forgotten.  A `quorum-state` row shows what the file holds each time the voter writes
it without casting a vote, and what it held when the process started.  In one epoch it must hold the vote that earlier
rows of this node show.  A disk that replaced another one holds none of these (`disks_by_row.py`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from checkers.base.arrays import Int64
from checkers.base.run_evidence import codes, numbers
from checkers.base.verdict import Witness
from checkers.kernels.raft.compared_rows import NOWHERE
from checkers.raft.disks_by_row import disks_by_row
from checkers.raft.witness_rows import WITNESSES_PER_PART, Fetch, Row, in_trace, whole

KEPT_EVENTS = ("disk", "vote", "quorum-state")


def votes_not_kept(rows: pa.Table, fetch: Fetch = whole) -> list[Witness]:
    """Make a witness for each epoch in which a vote was gone from quorum-state.

    rows: of one node, its KEPT_EVENTS, in seq order."""
    given, disks = _last_vote_before(rows), disks_by_row(rows)
    epochs, (peers, names) = numbers(rows, "epoch"), codes(rows, "peer")
    known = np.flatnonzero((given != NOWHERE) & ~disks.is_report)
    known = known[epochs[given[known]] == epochs[known]]
    known = known[disks.number[given[known]] == disks.number[known]]
    gone = known[(peers[known] == len(names) - 1) & (peers[given[known]] != len(names) - 1)]
    _, first = np.unique(epochs[gone], return_index=True)
    return [_not_kept(fetch(rows, int(given[at])), fetch(rows, int(at))) for at in gone[first][:WITNESSES_PER_PART]]


def last_vote(rows: pa.Table) -> tuple[int, ...]:
    """The position of the last row that shows a vote: all that later rows can contradict.  Empty if there is none."""
    shown = np.flatnonzero(_shows_vote(rows))
    return (int(shown[-1]),) if len(shown) else ()


def _last_vote_before(rows: pa.Table) -> Int64:
    """For each row, the position of the last earlier row that shows a vote, or NOWHERE."""
    shown = np.where(_shows_vote(rows), np.arange(len(rows)), NOWHERE)
    return np.concatenate(([NOWHERE], np.maximum.accumulate(shown)[:-1])) if len(rows) else shown


def _shows_vote(rows: pa.Table) -> Int64:
    peers, names = codes(rows, "peer")
    return np.asarray(peers != len(names) - 1)


def _not_kept(vote: Row, later: Row) -> Witness:
    node, peer, epoch = vote["node"], vote["peer"], vote["epoch"]
    return Witness(
        kind="vote not kept",
        summary=f"{node} voted for {peer} in epoch {epoch}, but later its quorum-state held no vote in that epoch.",
        rows=(vote, later),
        facts={
            "nodes": [node, peer],
            "epoch": epoch,
            "offset": None,
            "why": [
                f"{node} held its vote for {peer} in epoch {epoch} ({in_trace(vote)}).",
                f"Its quorum-state held no vote of epoch {epoch} ({in_trace(later)}).",
            ],
            "expected": "a vote is kept for as long as its epoch lasts, or the voter can vote again",
        },
    )
