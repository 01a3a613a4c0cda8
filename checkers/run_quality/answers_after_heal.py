"""Through which servers clients got an answer after the last heal, from the history.

Such an answer shows that a server came back, where the system itself cannot say so.  An answer of any server shows that
the system serves again, where no final read does.

Cost: row groups are read from the end of the history, and no further than to the last heal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.base.checker import Part
from checkers.base.history import Type
from checkers.base.stored_run import StoredRun

NEVER = 1 << 62
ANY_SERVER = "any server"
"""Stands for the first answer of whichever server."""


def part_for(run: StoredRun, nodes: Sequence[str]) -> Part:
    """The part that looks for answers of these servers, each after the last heal and after its own last death.

    nodes: ANY_SERVER may be one of them."""
    healed_ns = _last_heal_ns(run)
    return Part((str(run.history),), {"since_ns": {node: max(healed_ns, _last_end_ns(run, node)) for node in nodes}})


def answered(part: Part) -> frozenset[str]:
    """The servers of this part that gave an ok answer to a client, and ANY_SERVER.  part: from `part_for`."""
    since_ns: Mapping[str, int] = part.params["since_ns"]
    found: set[str] = set()
    with pq.ParquetFile(part.paths[0]) as file:
        for group in reversed(range(file.num_row_groups)):
            rows = file.read_row_group(group, ["time_ns", "process", "type", "node"], use_threads=False)
            ok = pc.and_(pc.equal(rows["type"], int(Type.OK)), pc.greater_equal(rows["process"], 0))
            latest = rows.filter(ok).group_by("node").aggregate([("time_ns", "max")]).to_pylist()
            found |= {row["node"] for row in latest if row["time_ns_max"] >= since_ns.get(row["node"], NEVER)}
            if any(row["time_ns_max"] >= since_ns.get(ANY_SERVER, NEVER) for row in latest):
                found.add(ANY_SERVER)
            earliest_ns = pc.min(rows["time_ns"]).as_py()
            if found >= since_ns.keys() or (earliest_ns is not None and earliest_ns < min(since_ns.values())):
                break
    return frozenset(found)


def _last_heal_ns(run: StoredRun) -> int:
    """When the last fault was healed; the begin of the recovery phase if only that phase healed one."""
    healed = [fault.healed_ns for fault in run.faults if fault.carried_out]
    return max(healed, default=0) if min(healed, default=0) >= 0 else _recovery_ns(run)[0]


def _last_end_ns(run: StoredRun, node: str) -> int:
    """When the server's process last ended before recovery was over, 0 if it never did."""
    over_ns = _recovery_ns(run)[1]
    ends = (death.time_ns for death in run.outcome.known_deaths if death.node == node)
    return max((at_ns for at_ns in ends if at_ns <= over_ns), default=0)


def _recovery_ns(run: StoredRun) -> tuple[int, int]:
    """The begin and the end of the recovery phase; NEVER where it did not come to that."""
    phase = run.outcome.phase("recovery")
    return (phase.start_ns, phase.end_ns) if phase is not None else (NEVER, NEVER)
