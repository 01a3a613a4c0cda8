"""A stored run: the paths of its files, the content of its small files, and the demands on it.

Checkers get one `StoredRun`, and read test.json and the journal only through this object.
Each file is read once, on first use.  A missing file counts as empty.  An unusable file raises BrokenFile, and the
checkers that need the file are then unknown.

*Demands* must be met before a verdict may be valid.  The harness computes the demands from the spec, the subject and
the workload before it reads any evidence, and checkers compare the evidence with the demands.  The journal is evidence,
so nothing in the journal can lower a demand.  Default values demand nothing: use them for a single history or a few
collected logs.

*Missing evidence.*  A checker of logs or traces is *not applicable* if the run does not demand this evidence.  If the
evidence is demanded but was not delivered or cannot be read, the checker is *unknown*, unless the delivered evidence
already shows a violation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from checkers.base.verdict import Validity, Verdict
from checkers.record.faults import Copy, FaultRecord
from checkers.record.header_and_outcome import Header, RunOutcome
from checkers.record.run_record import RunRecord

if TYPE_CHECKING:
    from checkers.base.checker import Need

FINAL_COPY = "final"
"""`when` of the copies that the harness takes at the end of the run."""
END_OF_COPIES = 1 << 62
"""Greater than the number of any copy."""

_CLIENT_NODE = re.compile(r"c\d+")

READS_OF_A_SERVER = 100
"""Number of the first final reads that are also invoked at each server."""


@dataclass(frozen=True, slots=True)
class Demands:
    """The demands on one run.

    servers: names of the nodes that run a server
    client_nodes: names of the nodes that host clients
    voters: names of the servers of which a majority decides; empty for all servers
    keys: names of all objects that clients use
    final_reads: (function, key) of every read that must be ok after recovery
    functions: the functions that the workload declares
    reads: functions whose answer shows a state
    writes: functions that may change a state
    nodes: True if the subject has server processes
    logs, traces: True if its servers deliver them
    elections: True if its servers elect a leader
    faults: True if the run injects faults
    nemesis: name of the nemesis that injects the faults
    rate_hz: operations per second of all clients together; 0 if clients make no pause
    invoked_share: fraction of the clients' rate that is invoked without any fault; already included in rate_hz.  It is
    below 1 for workloads that wait.
    ok_share: fraction of the scheduled operations that can be ok without any fault.  It is below 1 for locks, because
    an acquire fails while another client has the lock.
    op_timeout_s: maximum time in seconds that a client waits for an answer; 0 if unknown
    time_limit_s: duration of the main phase in seconds
    recovery_limit_s: maximum time in seconds until the system must have recovered
    holds: factor by which faults last longer than usual, because the system needs more time to fail over
    unavailable_s: maximum time in seconds without a successful operation while a majority is up and reachable, as the
    system promises; 0 if it promises nothing
    waived: names of demands that the user waived (`run_quality/waivers.py`)
    concurrency: number of client threads
    ends_early: True if the run may end as soon as an online check finds a violation
    each_server_serves: True if every server has clients of its own, so that every server must answer some operation
    routes_by_itself: True if answers do not name the server, so that no server is required to have answered
    registers_brokers: True if the metadata log contains records of brokers and partitions that no client requested
    each_server_read_at_end: True if every server must answer the first READS_OF_A_SERVER of the final reads after
    recovery
    final_needs_recovery: True if final reads may return old values while the system has not recovered
    set_up: functions of the requests that must be ok before the main phase
    """

    servers: tuple[str, ...] = ()
    client_nodes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    final_reads: tuple[tuple[str, str | None], ...] = ()
    functions: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset({"read"})
    writes: frozenset[str] = frozenset({"write"})
    nodes: bool = False
    logs: bool = False
    traces: bool = False
    elections: bool = False
    faults: bool = False
    nemesis: str = ""
    rate_hz: float = 0.0
    invoked_share: float = 1.0
    ok_share: float = 1.0
    op_timeout_s: float = 0.0
    time_limit_s: float = 0.0
    recovery_limit_s: float = 0.0
    holds: float = 1.0
    unavailable_s: float = 0.0
    waived: tuple[str, ...] = ()
    concurrency: int = 0
    ends_early: bool = False
    each_server_serves: bool = False
    routes_by_itself: bool = False
    registers_brokers: bool = False
    each_server_read_at_end: bool = False
    final_needs_recovery: bool = False
    set_up: tuple[str, ...] = ()
    voters: tuple[str, ...] = ()


class StoredRun:
    """One run folder (results/README.md) and the demands on it."""

    def __init__(self, root: Path, demands: Demands | None = None, record: RunRecord | None = None) -> None:
        """Refer to the run in the folder `root`.

        record: the record of this run if it was already read
        """
        self.root = root
        self.demands = demands or Demands()
        self.record = record or RunRecord(root)
        tables = root / "tables"
        self.history = root / "history.parquet"
        """The sealed history, in index order."""
        self.buckets = root / "buckets"
        """Folder of `bucket-NNN.parquet`: the clients' operations, split by key (`sealing/key_buckets.py`)."""
        self.log = tables / "log"
        """Folder of `<node>.parquet` (schema LOG: all copies of one node, ordered by copy, then by offset)."""
        self.cluster = tables / "cluster"
        """Folder of `<node>.parquet` (schema CLUSTER: all copies of one node, ordered by copy, then by offset)."""
        self.topics = tables / "topics"
        """Folder of `<node>.parquet` (schema TOPICS)."""
        self.comparisons = tables / "comparisons.parquet"
        """Parquet file of schema COMPARISONS."""
        self.replayed = tables / "replayed"
        """Folder of `<node>.parquet` (schema REPLAYED)."""
        self.trace = tables / "trace"
        """Folder of `<node>.parquet` (schema TRACE, in seq order)."""
        self.copies_table = tables / "copies.parquet"
        """Parquet file of schema COPIES."""

    # Content of the small files, cached after the first read.

    @property
    def header(self) -> Header | None:
        """Return test.json, the description of the run; None if there is none."""
        return self.record.header

    @cached_property
    def outcome(self) -> RunOutcome:
        """Return facts that only the harness knows.  They are evidence, and no demands.

        Returns an empty outcome if the run did not end (`record.outcome` is None).
        """
        return self.record.outcome or RunOutcome()

    @property
    def faults(self) -> Sequence[FaultRecord]:
        """Return the record of each fault, in the order of their cards in the schedule."""
        return self.record.faults

    @property
    def copies_index(self) -> Sequence[Copy]:
        """Return every copy that the harness took of a data directory."""
        return self.record.copies

    @cached_property
    def history_is_whole(self) -> bool:
        """Return True if the sealed history has as many rows as the journal counts, so that no operation is missing."""
        ended = self.record.ended
        return ended is not None and self.history.exists() and pq.read_metadata(self.history).num_rows == ended.rows

    @cached_property
    def copies(self) -> list[dict[str, Any]]:
        """Return rows of COPIES, in order of copy and node; empty if there are none.

        A copy of a disk is left out if a fault may have corrupted the disk before, because such a copy proves nothing
        about the system.  If nothing proves that the fault was in force, the run is unknown.
        """
        return sorted(
            (row for row in self._all_copies if not self.is_damaged(row["copy"], row["node"])),
            key=lambda row: (row["copy"], by_number(row["node"])),
        )

    @cached_property
    def final_copies(self) -> dict[str, dict[str, Any]]:
        """Return node -> the row of its final copy, if this copy is readable and no fault had corrupted the disk."""
        return {row["node"]: row for row in self.copies if row["when"] == FINAL_COPY and not row["error"]}

    @cached_property
    def copied_seqs(self) -> dict[str, int]:
        """Return node -> the last seq of its trace before its last copy.  All traces were collected after this copy."""
        return {row["node"]: row["trace_seq"] for row in sorted(self.copies, key=lambda row: int(row["trace_seq"]))}

    @cached_property
    def damaged_copies(self) -> list[dict[str, Any]]:
        """Return the rows of COPIES that `copies` leaves out.

        The disks of these nodes prove nothing about the system, but their traces still do.
        """
        return [row for row in self._all_copies if self.is_damaged(row["copy"], row["node"])]

    def is_damaged(self, copy: int, node: str) -> bool:
        """Return True if a fault may have corrupted the disk of this node before this copy was taken.

        copy: number of the copy
        """
        return copy >= self.damaged_from.get(node, END_OF_COPIES)

    @cached_property
    def damaged_from(self) -> dict[str, int]:
        """Return node -> number of the first copy that a fault on the node's disk may have corrupted."""
        first: dict[str, int] = {}
        for fault in self.faults:
            for node in fault.nodes if fault.carried_out and fault.damages_data else ():
                first[node] = min([first.get(node, END_OF_COPIES), *self._copies_since(node, fault.began_ns)])
        return first

    def _copies_since(self, node: str, began_ns: int) -> list[int]:
        """Return the numbers of the copies of a node that may have been completed after this time.

        If the time of a copy is unknown, the copy counts if the heal that it names was ordered after this time.
        """
        later = {before_heal(f) for f in self.faults if f.heal_ordered_ns > began_ns}
        taken_ns = {(c.copy, c.node): c.taken_ns for c in self.copies_index}
        return [
            c["copy"]
            for c in self._all_copies
            if c["when"] == FINAL_COPY
            or (at_ns >= began_ns if (at_ns := taken_ns.get((c["copy"], node), -1)) >= 0 else c["when"] in later)
        ]

    @cached_property
    def _all_copies(self) -> list[dict[str, Any]]:
        if not self.copies_table.exists():
            return []
        rows: list[dict[str, Any]] = pq.read_table(self.copies_table, partitioning=None).to_pylist()
        return rows

    @cached_property
    def servers(self) -> tuple[str, ...]:
        """Return the names of the demanded servers and of other nodes, except clients, with a log, trace or copy."""
        left = {*node_files(self.log), *node_files(self.trace), *(copy["node"] for copy in self.copies)}
        strangers = {name for name in left if name and not _CLIENT_NODE.fullmatch(name)}
        return tuple(sorted({*self.demands.servers, *strangers}, key=by_number))

    @property
    def voters(self) -> tuple[str, ...]:
        """Return the servers of which a majority decides."""
        return self.demands.voters or self.servers


def before_heal(fault: FaultRecord) -> str:
    """Return the value of `when` for copies that the harness takes before the heal of this fault."""
    return f"before heal {fault.card.number}"


def by_number(name: str) -> tuple[str, int]:
    """Return a sorting key that orders n2 before n10."""
    digits = re.search(r"\d+$", name)
    return (name[: digits.start()], int(digits.group())) if digits else (name, -1)


def node_files(folder: Path) -> dict[str, str]:
    """Return node -> path of its Parquet file in `tables/log` or `tables/trace`; empty if there are none."""
    return {p.stem: str(p) for p in sorted(folder.glob("*.parquet"), key=lambda p: by_number(p.stem))}


def not_judged(run: StoredRun, needs: Collection[Need]) -> Verdict | None:
    """Return the verdict of a checker if it needs logs or traces and the run has none at all; otherwise None."""
    of_nodes = [need for need in ("logs", "traces") if need in needs]
    for need in of_nodes:
        if not getattr(run.demands, need):
            return Verdict(Validity.NOT_APPLICABLE, reason=f"the system under test has no {need} of this kind")
    for need in of_nodes:
        if not node_files(run.log if need == "logs" else run.trace):
            return Verdict(Validity.UNKNOWN, reason=f"no node delivered {need}, though the system under test has them")
    return None


def gaps(run: StoredRun, *needs: str) -> list[str]:
    """Return one clause for each gap in the evidence: a node delivered no logs or no traces, or a file is unreadable.

    needs: "logs", "traces" or both
    """
    found = []
    everyone = run.servers
    for need, folder in (("logs", run.log), ("traces", run.trace)):
        if need in needs and (silent := sorted(set(everyone) - set(node_files(folder)), key=by_number)):
            found.append(f"{', '.join(silent)} delivered no {need}")
        found += [f"{p.stem}: {p.read_text().strip()}" for p in sorted(folder.glob("*.error")) if need in needs]
    if "logs" in needs:
        found += [f"copy {c['copy']} of {c['node']} is unreadable: {c['error']}" for c in run.copies if c["error"]]
    return found
