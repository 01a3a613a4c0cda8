"""Does what the harness states of recovery agree with what else is known of the run?

The journal is evidence, and it cannot set its own measure.  The limit is that of the spec.  A system with nodes always
has to recover once a fault was injected.  The wait for it lies within the phase of recovery, and the history shows how
long that phase took.
"""

from __future__ import annotations

import math

from checkers.base.stored_run import StoredRun
from checkers.record.faults import Proof
from checkers.record.outcome import Recovery
from checkers.run_quality.unreadable import PROVEN

VERDICTS_OF_PROOFS = (PROVEN, "not as ordered", "indeterminate")
"""The words that a proof may end with (`checkers.record.faults.Proof`)."""

ROUNDED_S = 1.0
"""By so much the stated seconds may exceed the phase: both are noted with a small delay."""


def limit_s(run: StoredRun) -> float:
    """The system must recover within this time; without a demand, that of the file."""
    stated = run.outcome.recovery
    return run.demands.recovery_limit_s or (stated.limit_s if stated is not None else 0.0)


def needed(run: StoredRun) -> bool:
    """Whether there is something to recover from.  An injected fault always demands it."""
    stated = run.outcome.recovery
    return stated is None or stated.needed or any(fault.carried_out for fault in run.faults)


def misstated(run: StoredRun) -> list[str]:
    """One sentence for each statement on recovery that cannot be right.  Of what is not stated nothing is claimed."""
    stated = run.outcome.recovery
    if stated is None:
        return []
    clauses = []
    if not stated.needed and needed(run):
        clauses.append("the journal states that nothing had to recover, and faults were injected")
    for name, value in (("seconds", stated.seconds), ("limit_s", stated.limit_s)):
        if value is not None and not 0 <= value < math.inf:
            clauses.append(f"the journal states {value!r} as {name} of recovery, which is no time")
    known = run.demands.recovery_limit_s
    if known and stated.limit_s and stated.limit_s != known:
        clauses.append(f"the journal states a limit of {stated.limit_s} s for recovery, and the spec {known:g} s")
    if stated.recovered is not None and not _proven_or_not(stated.proof):
        clauses.append("the journal holds no proof of the last heal")
    phase_s = _phase_s(run)
    if phase_s is not None and stated.seconds is not None and stated.seconds > phase_s + ROUNDED_S:
        clauses.append(f"recovery took {stated.seconds} s, and the phase of recovery only {phase_s:.1f} s")
    return clauses + _overlooked(run, stated)


def _proven_or_not(proof: Proof | None) -> bool:
    """The harness heals everything and measures that before it waits for recovery, so every run holds the proof.  What
    the proof shows is not judged here: a system may recover from half a heal, too."""
    return proof is not None and proof.verdict in VERDICTS_OF_PROOFS


def _overlooked(run: StoredRun, stated: Recovery) -> list[str]:
    """Recovery looks at every server.  A server of the spec that it did not look at never existed.

    The proof may lack a dead server, whose state it need not show."""
    looked_at, proof = stated.looked_at, stated.proof
    missing = [node for node in run.demands.servers if looked_at and node not in looked_at]
    clauses = [f"recovery did not look at {', '.join(missing)}"] if missing else []
    alive = [node for node, words in looked_at.items() if "process dead" not in words]
    if bare := [node for node in alive if len(looked_at[node]) < 2 and node not in stated.without_evidence]:
        clauses.append(f"recovery looked at nothing but the process of {', '.join(bare)}, and does not state that")
    shown = proof.states if proof is not None and proof.verdict == PROVEN else {}
    if shown and (lacking := [node for node in alive if node not in shown]):
        clauses.append(f"the proof of the heal does not show the state of {', '.join(lacking)}")
    return clauses


def _phase_s(run: StoredRun) -> float | None:
    """How long the phase of recovery took; None if it is not known to have ended."""
    phase = run.outcome.phase("recovery")
    if phase is None or not 0 <= phase.start_ns <= phase.end_ns:
        return None
    return (phase.end_ns - phase.start_ns) / 1e9
