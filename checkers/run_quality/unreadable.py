"""Finds objects that a system no longer has, or does not serve, although it recovered.

All final reads of such an object failed until their time was over, and the object had been read or its writes had been
acknowledged before.  Two patterns show it:

- Every read of the object was answered with the same definite error, by each server that has clients of its own.
- No object at all could be read, and each last answer was an exception of the client.

Nothing is claimed where something else may be the cause: a fault that is not proven healed, damaged data, faults beyond
the budget, or requests that the harness could not send or waited for in vain.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from checkers.base.history import Type
from checkers.base.stored_run import StoredRun, by_number
from checkers.base.verdict import Witness

PROVEN = "as ordered"
"""The `verdict` of a heal's proof (`checkers.record.faults.Proof`) if everything was healed."""
_OF_THE_HARNESS = ("not sent", "not invoked", "agent", "client-overran", "timeout", "the client cannot be made")
"""How errors begin that no server gave."""
_NO_ANSWER = re.compile(r"(?i)time.?out|timed out|connection|refused:|not leader|no leader|^$")
"""Errors that are no answer about the object."""
READS_LEAST = 2


def unreadable(run: StoredRun, limit_s: float) -> Witness | None:
    """Return the violation if objects cannot be read any more.

    limit_s: least time for which the reads must have been tried, in seconds.
    """
    errors = run.outcome.final_reads
    reading = run.outcome.phase("final reads")
    begin_ns, end_ns = (reading.start_ns, reading.end_ns) if reading is not None else (-1, -1)
    failed = sorted((key for key, error in errors.items() if error != "ok"), key=by_number)
    if not failed or begin_ns < 0 or end_ns - begin_ns < limit_s * 1e9 or _excused(run):
        return None
    seconds = f"{(end_ns - begin_ns) / 1e9:.0f} s"
    known = _acknowledged_before(run, begin_ns)
    if gone := {key: error for key in failed if key in known and (error := _one_error(run, key, begin_ns))}:
        key, error = next(iter(gone.items()))
        more = f" (and {len(gone) - 1} more of {len(errors)})" if len(gone) > 1 else ""
        return _witness(
            run,
            f"{key}{more} could not be read for {seconds} after recovery: every read was answered with {error:.200}",
            [f"Operations on {key} had been acknowledged before, and every fault was healed."],
        )
    by_exception = all(": " in error and not error.startswith(_OF_THE_HARNESS) for error in errors.values())
    if not by_exception or len(failed) < len(errors) or not set(errors) <= _read_before(run, begin_ns):
        return None
    key, error = sorted(errors.items())[0]
    return _witness(
        run,
        f"no key could be read for {seconds} after recovery; the last answer for {key} was {error:.200}",
        [
            f"Each of the {len(errors)} keys had been read before.",
            f"Every fault was healed, and then every read was answered with an error for {seconds}.",
        ],
    )


def _witness(run: StoredRun, summary: str, why: Sequence[str]) -> Witness:
    facts = {"nodes": run.servers, "epoch": None, "offset": None, "why": why, "expected": "an ok read of every key"}
    return Witness("not readable any more", summary, facts=facts)


def _excused(run: StoredRun) -> bool:
    recovery = run.outcome.recovery
    proven = recovery is not None and recovery.proof is not None and recovery.proof.verdict == PROVEN
    beyond = any(fault.over_budget for fault in run.faults)
    return not proven or bool(run.damaged_from) or beyond


def _one_error(run: StoredRun, key: str, since_ns: int) -> str:
    """Return the definite error with which every read of the object was answered; "" if there is no such error."""
    rows = _rows(run, (ds.field("time_ns") >= since_ns) & (ds.field("key") == key) & _reads(run)).to_pylist()
    ended = [row for row in rows if row["type"] != Type.INVOKE]
    errors = {str(row["error"] or "") for row in ended}
    silent = set(run.demands.servers) - {row["node"] for row in ended} if run.demands.each_server_serves else ()
    if len(ended) < READS_LEAST or len(errors) != 1 or silent or any(row["type"] != Type.FAIL for row in ended):
        return ""
    (error,) = errors
    return "" if error.startswith(_OF_THE_HARNESS) or _NO_ANSWER.search(error) else error


def _acknowledged_before(run: StoredRun, before_ns: int) -> set[str]:
    """Return the keys with an ok read or write that ended before this time."""
    asked = ds.field("f").isin(sorted(run.demands.reads | run.demands.writes))
    return _keys(run, asked & (ds.field("type") == int(Type.OK)) & (ds.field("time_ns") < before_ns))


def _read_before(run: StoredRun, before_ns: int) -> set[str]:
    """Return the keys with an ok read that ended before this time."""
    return _keys(run, _reads(run) & (ds.field("type") == int(Type.OK)) & (ds.field("time_ns") < before_ns))


def _reads(run: StoredRun) -> ds.Expression:
    return ds.field("f").isin(sorted(run.demands.reads))


def _keys(run: StoredRun, chosen: ds.Expression) -> set[str]:
    return {str(key) for key in pc.unique(_rows(run, chosen)["key"]).to_pylist()}


def _rows(run: StoredRun, chosen: ds.Expression) -> pa.Table:
    columns = ["type", "key", "error", "node"]
    return ds.dataset(run.history).to_table(columns=columns, filter=chosen & (ds.field("process") >= 0))
