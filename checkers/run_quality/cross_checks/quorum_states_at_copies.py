"""Checks that the leader and the vote in each copied quorum-state file are those that the traces report.

A node writes this file before it reports its role or its vote, and knows nothing else after a restart.  So the file of
a copy must agree with the rows within the noted size of the trace:

* The leader that it names must lead that epoch.  A node may have died before it reported a leader, so a leader of whom
  no trace speaks is not doubted.
* A node whose trace names the leader of the file's epoch has written it: a leader is not forgotten within its epoch.
* A vote must stand in the trace.  One vote may be on its way when the node is stopped, but none in an epoch whose
  leader the node knows: then it votes no more.

A vote that the trace has and the file has not is a violation of the system (`vote-once`).  Only
the numbers of rows count, so the clocks of nodes do not matter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from checkers.base.run_evidence import coded, numbers, read_trace, words
from checkers.base.stored_run import StoredRun, node_files
from checkers.raft.reading import disks_by_row

_ROLE, _VOTE = 1, 2
_EVENTS = {"role": _ROLE, "vote": _VOTE, "quorum-state": _VOTE, "disk": 0}


class _Reports:
    """What one trace says of leaders and votes: seq, epoch, event and the node that each row names, "" for none."""

    def __init__(self, node: str, path: str) -> None:
        rows = read_trace(path, _EVENTS, ("epoch", "peer", "role", "detail"))
        self.seq, self.epoch = numbers(rows, "seq"), numbers(rows, "epoch")
        self.event = coded(rows, "event", _EVENTS)
        self.disks = disks_by_row(rows)
        leads = coded(rows, "role", {"leader": 1}) == 1
        self.named = np.array(
            [node if own else peer or "" for own, peer in zip(leads, words(rows, "peer"), strict=True)]
        )

    def leaders(self) -> set[tuple[int, str]]:
        """(epoch, leader) of every row that names a leader."""
        shown = (self.event == _ROLE) & (self.named != "")
        return set(zip(self.epoch[shown].tolist(), self.named[shown].tolist(), strict=True))

    def before(self, copy: Mapping[str, Any], event: int) -> set[str]:
        """Whom the rows of this event named in the epoch of this copy's file, before the copy and on its disk."""
        shown = (self.event == event) & (self.named != "") & (self.epoch == copy["quorum_epoch"])
        shown &= (self.seq <= copy["trace_seq"]) & (self.disks.number == self.disks.of_copy(dict(copy)))
        return set(self.named[shown].tolist())


def differ(run: StoredRun) -> list[str]:
    """One sentence for each copy whose quorum-state file says something else than the traces.  Damaged disks are not
    looked at."""
    if not (run.demands.logs and run.demands.traces):
        return []
    reports = {node: _Reports(node, path) for node, path in node_files(run.trace).items()}
    leaders: dict[int, set[str]] = defaultdict(set)
    for epoch, leader in (claim for each in reports.values() for claim in each.leaders()):
        leaders[epoch].add(leader)
    clauses = []
    for copy in run.copies:
        node, epoch, leader_id = copy["node"], copy["quorum_epoch"], copy.get("leader_id")
        if copy["error"] or node not in reports or leader_id is None:
            continue
        named, known = f"n{leader_id}" if leader_id >= 0 else "", reports[node].before(copy, _ROLE)
        file = f"the quorum-state of copy {copy['copy']} of {node} cannot be right: in epoch {epoch}"
        if named and leaders[epoch] and named not in leaders[epoch]:
            clauses.append(f"{file} it names the leader {named}, and the traces {_either(leaders[epoch])}")
        elif known and not named:
            clauses.append(f"{file} it names no leader, and the trace of {node} had named {_either(known)}")
        if known and copy["voted_for"] is not None and not reports[node].before(copy, _VOTE):
            clauses.append(f"{file} it holds a vote for {copy['voted_for']}, and the trace of {node} shows none")
    return clauses


def _either(names: set[str]) -> str:
    return " or ".join(sorted(names))
