"""Does what outcome.json states of recovery agree with what else is known of the run?

outcome.json is evidence, and it cannot set its own measure.  The limit is that of the spec.  A system with nodes always
has to recover once a fault was injected.  The wait for it lies within the phase of recovery, and the history shows how
long that phase took.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from checkers.base.json_file import mapping, number, real, sequence
from checkers.base.stored_run import StoredRun
from checkers.run_quality.unreadable import PROVEN

VERDICTS_OF_PROOFS = (PROVEN, "not as ordered", "indeterminate")
"""The words that a proof may end with (`checkers.record.faults.Proof`)."""

ROUNDED_S = 1.0
"""By so much the stated seconds may exceed the phase: both are noted with a small delay."""


def limit_s(run: StoredRun) -> float:
    """The system must recover within this time; without a demand, that of the file."""
    return run.demands.recovery_limit_s or real(_stated(run).get("limit_s"), 0.0)


def needed(run: StoredRun) -> bool:
    """Whether there is something to recover from.  An injected fault always demands it."""
    return _stated(run).get("needed") is not False or any(fault.carried_out for fault in run.faults)


def misstated(run: StoredRun) -> list[str]:
    """One sentence for each statement on recovery that cannot be right.  Of what is not stated nothing is claimed."""
    stated = _stated(run)
    clauses = []
    if "needed" in stated and not isinstance(stated["needed"], bool):
        clauses.append(f"outcome.json states {stated['needed']!r}, and not whether recovery was needed")
    elif stated.get("needed") is False and needed(run):
        clauses.append("outcome.json states that nothing had to recover, and faults were injected")
    if "recovered" in stated and not isinstance(stated["recovered"], bool):
        clauses.append(f"outcome.json states {stated['recovered']!r}, and not whether the system recovered")
    for name in ("seconds", "limit_s"):
        if name in stated and not (0 <= real(stated[name], math.nan) < math.inf):
            clauses.append(f"outcome.json states {stated[name]!r} as {name} of recovery, which is no time")
    known = run.demands.recovery_limit_s
    if known and real(stated.get("limit_s"), known) != known:
        clauses.append(f"outcome.json states a limit of {stated['limit_s']} s for recovery, and the spec {known:g} s")
    clauses += _without_proof(run, stated)
    phase_s = _phase_s(run)
    if phase_s is not None and real(stated.get("seconds"), 0.0) > phase_s + ROUNDED_S:
        clauses.append(f"recovery took {stated['seconds']} s, and the phase of recovery only {phase_s:.1f} s")
    return clauses + _overlooked(run, stated)


def _without_proof(run: StoredRun, stated: Mapping[str, Any]) -> list[str]:
    """The harness heals everything and measures that before it waits for recovery, so every run of a format with a
    ledger holds the proof.  What the proof shows is not judged here: a system may recover from half a heal, too."""
    if not run.demands.ledger or "recovered" not in stated:
        return []
    if mapping(stated.get("proof")).get("verdict") in VERDICTS_OF_PROOFS:
        return []
    return ["outcome.json holds no proof of the last heal"]


def _overlooked(run: StoredRun, stated: Mapping[str, Any]) -> list[str]:
    """Recovery looks at every server.  A server of the spec that it did not look at never existed.

    Older runs do not record what was looked at.  The proof may lack a dead server, whose state it need not show."""
    looked_at, proof = mapping(stated.get("looked_at")), mapping(stated.get("proof"))
    missing = [node for node in run.demands.servers if looked_at and node not in looked_at]
    clauses = [f"recovery did not look at {', '.join(missing)}"] if missing else []
    states = mapping(proof.get("states"))
    alive = [node for node, words in looked_at.items() if "process dead" not in sequence(words)]
    known = sequence(stated.get("without_evidence"))
    if bare := [node for node in alive if len(sequence(looked_at[node])) < 2 and node not in known]:
        clauses.append(f"recovery looked at nothing but the process of {', '.join(bare)}, and does not state that")
    if states and proof.get("verdict") == PROVEN and (lacking := [node for node in alive if node not in states]):
        clauses.append(f"the proof of the heal does not show the state of {', '.join(lacking)}")
    return clauses


def _stated(run: StoredRun) -> Mapping[str, Any]:
    return mapping(run.outcome.get("recovery"))


def _phase_s(run: StoredRun) -> float | None:
    """How long the phase of recovery took; None if it is not known to have ended."""
    for phase in map(mapping, sequence(run.outcome.get("phases"))):
        begin_ns, end_ns = number(phase.get("start_ns"), -1), number(phase.get("end_ns"), -1)
        if phase.get("name") == "recovery" and 0 <= begin_ns <= end_ns:
            return (end_ns - begin_ns) / 1e9
    return None
