"""The data budget: at most a minority of the servers may lose what they had fsynced.

No system promises to keep what a majority of its servers lost.  All servers may lose what they had not fsynced.
"""

from __future__ import annotations

from collections.abc import Sequence

from checkers.record.faults import Fault
from nemesis.catalog import kind_named
from nemesis.kind import Kind
from nemesis.playing.records import FaultRecords


def spent(records: FaultRecords) -> frozenset[str]:
    """The servers that lost what they had fsynced to faults of this run."""
    return frozenset(
        server
        for number, fault in records.faults.items()
        for server in kind_named(records.by_number[number].kind).costs(fault)
    )


def breaks(kind: Kind, fault: Fault, records: FaultRecords, servers: Sequence[str]) -> bool:
    """Whether this fault costs, with those before it, half of the servers or more what they had fsynced."""
    cost = kind.costs(fault)
    return bool(cost) and 2 * len(spent(records) | cost) >= len(servers)


def why_not(servers: Sequence[str]) -> str:
    """Why a fault that breaks the budget is not carried out."""
    most = (len(servers) - 1) // 2
    return f"it would cost more than {most} servers what they had fsynced: no system promises to survive that"
