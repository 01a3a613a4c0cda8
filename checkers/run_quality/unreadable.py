"""Does a system that recovered serve what it served before?  It may have lost so much that every read is an error.

All final reads failed until their time was over, every one with an exception of its client: the system answered, and
not with a value.  The same keys had been read before.  So the system no longer has what was there, or does not serve.

Nothing is claimed where something else may be the cause: a fault that is not proven healed, damaged data, faults beyond
the budget, or requests that the harness could not send or waited for in vain.
"""

from __future__ import annotations

import pyarrow.compute as pc
import pyarrow.dataset as ds

from checkers.base.history import Type
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Witness

PROVEN = "as ordered"
"""The `verdict` of a heal's proof (`checkers.record.faults.Proof`) if everything was healed."""
_OF_THE_HARNESS = ("not sent", "not invoked", "agent", "client-overran", "timeout", "the client cannot be made")
"""How errors begin that no server gave."""


def unreadable(run: StoredRun, limit_s: float) -> Witness | None:
    """The violation if no key can be read any more.  limit_s: for so long at least the reads must have been tried."""
    errors = run.outcome.final_reads
    reading = run.outcome.phase("final reads")
    begin_ns, end_ns = (reading.start_ns, reading.end_ns) if reading is not None else (-1, -1)
    if not errors or begin_ns < 0 or end_ns - begin_ns < limit_s * 1e9 or _excused(run):
        return None
    if any(error == "ok" or error.startswith(_OF_THE_HARNESS) or ": " not in error for error in errors.values()):
        return None
    if not set(errors) <= _read_before(run, begin_ns):
        return None
    key, error = sorted(errors.items())[0]
    seconds = f"{(end_ns - begin_ns) / 1e9:.0f} s"
    return Witness(
        kind="not readable any more",
        summary=f"no key could be read for {seconds} after recovery; the last answer for {key} was {error:.200}",
        facts={
            "nodes": run.servers,
            "epoch": None,
            "offset": None,
            "why": [
                f"Each of the {len(errors)} keys had been read before.",
                f"Every fault was healed, and then every read was answered with an error for {seconds}.",
            ],
            "expected": "an ok read of every key",
        },
    )


def _excused(run: StoredRun) -> bool:
    recovery = run.outcome.recovery
    proven = recovery is not None and recovery.proof is not None and recovery.proof.verdict == PROVEN
    beyond = any(fault.over_budget for fault in run.faults)
    return not proven or bool(run.damaged_from) or beyond


def _read_before(run: StoredRun, before_ns: int) -> set[str]:
    """The keys with an ok read that ended before this time."""
    reads = sorted(run.demands.reads)
    ok = (ds.field("type") == int(Type.OK)) & (ds.field("process") >= 0) & (ds.field("time_ns") < before_ns)
    rows = ds.dataset(run.history).to_table(columns=["key"], filter=ok & ds.field("f").isin(reads))
    return {str(key) for key in pc.unique(rows["key"]).to_pylist()}
