"""The checkers `nodes-stay-up` and `recovery`: every node stays up, and the system recovers after the last heal.

It is a violation if a node dies unexpectedly or stops itself.  The witness shows the reason.  For example, a system
that stops by design at a truncation below the high watermark thereby reports that another promise was broken.

The only excuse is a fault that may kill a server.  If the kernel may have killed a server because memory ran out
(`may_be_out_of_memory`), the verdict is unknown.

If nodes write no traces and a server ends before the system was ever ready, the verdict is unknown, because usually the
configuration is wrong.

Recovery is a promise about time.  The spec sets the time limit; the journal does not.  Recovery is judged only if
measurements *proved* that every fault was healed.  It is a violation if the system has not caught up within the limit
after this proof, unless its nodes got hardly any CPU time.

A valid verdict needs evidence about each server.  If the harness observed only the states of the processes, an answer
that a client got from each server after the last heal is evidence, too.  Without evidence, the verdict is unknown.

Reports of the system about itself do not show that it serves clients again.  Final reads show it if the workload has
any.  In a workload without final reads, such as locks, one answer of any server after the last heal must show it.

*Lost objects.*  A recovered system may have lost an object, or may not serve it.  Then all final reads of the object
failed until their time was over, although the object had been read or its writes had been acknowledged before.  There
are two patterns:

- Every read of the object was answered with the same definite error, by each server that has its own clients.
- No object could be read at all, and each last answer was an exception of the client.

No violation is reported if there may be another cause: a fault that is not proven healed, damaged data, faults beyond
the budget, or requests that the harness could not send or that timed out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import Any

from checkers.base.cause_of_end import cause_of_end, is_note
from checkers.base.checker import checker_of_run
from checkers.base.history import Type
from checkers.base.stored_rows import read_trace
from checkers.base.stored_run import StoredRun, by_number, gaps, node_files
from checkers.base.verdict import Validity, Verdict, Witness, conclude
from checkers.raft.rules import Row
from checkers.record.faults import Proof
from checkers.record.header_and_outcome import Death, Recovery, error_ns
from checkers.run_quality.faults_installed import Excuse
from checkers.sealing.sealed_history import history_tables

PROVEN = "as ordered"
"""Value of `checkers.record.faults.Proof.verdict` if every fault was healed."""
_OF_THE_HARNESS = ("not sent", "not invoked", "agent", "client-overran", "timeout", "the client cannot be made")
"""Prefixes of errors that come from the harness or a client, not from a server."""
_NOT_ANSWERED = re.compile(r"(?i)time.?out|timed out|connection|refused:|not leader|no leader|^$")
"""Pattern of errors that are no answer about the object."""
READS_LEAST = 2


def unreadable(run: StoredRun, limit_s: float) -> Witness | None:
    """Return the violation if objects cannot be read any more.

    limit_s: minimum seconds for which the reads must have been tried
    """
    errors = run.outcome.final_reads
    reading = run.outcome.phase("final reads")
    begin_ns, end_ns = (reading.start_ns, reading.end_ns) if reading is not None else (-1, -1)
    failed = sorted((key for key, error in errors.items() if error != "ok"), key=by_number)
    if not failed or begin_ns < 0 or end_ns - begin_ns < limit_s * 1e9 or _excused(run):
        return None
    seconds = f"{(end_ns - begin_ns) / 1e9:.0f} s"
    known = _acknowledged_before(run, run.demands.reads | run.demands.writes, begin_ns)
    if gone := {key: error for key in failed if key in known and (error := _one_error(run, key, begin_ns))}:
        key, error = next(iter(gone.items()))
        more = f" (and {len(gone) - 1} more of {len(errors)})" if len(gone) > 1 else ""
        return _witness(
            run,
            f"{key}{more} could not be read for {seconds} after recovery: every read was answered with {error:.200}",
            [f"Operations on {key} had been acknowledged before, and every fault was healed."],
        )
    by_exception = all(": " in error and not error.startswith(_OF_THE_HARNESS) for error in errors.values())
    if (
        not by_exception
        or len(failed) < len(errors)
        or not set(errors) <= _acknowledged_before(run, run.demands.reads, begin_ns)
    ):
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
    query = "SELECT type, error, node FROM events WHERE type > 0 AND time_ns >= ? AND key = ? AND list_contains(?, f)"
    with history_tables(run.history) as sql:
        ended = sql.execute(query, [since_ns, key, sorted(run.demands.reads)]).fetchall()
    errors = {error or "" for _, error, _ in ended}
    silent = set(run.demands.servers) - {node for *_, node in ended} if run.demands.each_server_serves else ()
    if len(ended) < READS_LEAST or len(errors) != 1 or silent or any(type_ != Type.FAIL for type_, *_ in ended):
        return ""
    (error,) = errors
    return "" if error.startswith(_OF_THE_HARNESS) or _NOT_ANSWERED.search(error) else str(error)


def _acknowledged_before(run: StoredRun, functions: Collection[str], before_ns: int) -> set[str]:
    """Return the keys with an ok operation of these functions that ended before `before_ns`."""
    query = "SELECT DISTINCT key FROM events WHERE type = 1 AND time_ns < ? AND list_contains(?, f)"
    with history_tables(run.history) as sql:
        return {str(key) for (key,) in sql.execute(query, [before_ns, sorted(functions)]).fetchall()}


_REASONS_MAX = 3
"""Maximum number of reasons in one sentence; the excerpts show all reasons."""
_LAST_LINE_CHARACTERS = 200

BEATS_LEAST = 0.5
"""Minimum share of due heartbeats that an agent sends when its node gets enough CPU."""

ROUNDED_S = 1.0
"""Maximum seconds by which the stated recovery time may exceed the phase, because both are recorded with a delay."""
LATE_S = 5.0
"""Maximum seconds after the limit at which the harness may still record a recovery that was in time."""


def _combine_deaths(run: StoredRun, _: Sequence[Any]) -> Verdict:
    if not run.demands.nodes:
        return Verdict(Validity.NOT_APPLICABLE, reason="the system under test has no nodes")
    excuse, (unordered, ordered) = _excuse(run), _deaths(run)
    traces = [read_trace(path, ("fatal",)).to_pylist() for path in node_files(run.trace).values()]
    refusals: list[Row] = [{"table": "trace", **row} for rows in traces for row in rows]
    fatal = [row for row in refusals if not excuse.may_cover(row["node"], row["time_ns"])]
    found = excuse.sort(unordered, ordered)
    deaths = [death for death in found.unexcused if not may_be_out_of_memory(death)]
    names = {death.node or "a node" for death in deaths} | {row["node"] for row in fatal}
    witnesses = [
        _died(
            node,
            [death for death in deaths if (death.node or "a node") == node],
            [row for row in fatal if row["node"] == node],
        )
        for node in sorted(names, key=by_number)
    ]
    unknown = [] if run.record.outcome is not None else ["the harness did not finish, so deaths are not listed"]
    if run.outcome.set_up_failure and not run.demands.traces:
        unknown += [f"{witness.summary}, before the system was ever ready" for witness in witnesses]
        witnesses = []
    unknown += [_not_known(death) for death in found.not_known]
    unknown += _out_of_memory(found.unexcused)
    doubtful = {row["node"] for row in refusals if not excuse.covers(row["node"], row["time_ns"])}
    doubtful -= {row["node"] for row in fatal} | {death.node for death in found.not_known}
    unknown += [f"{node} stopped itself under a fault that is not proven" for node in sorted(doubtful, key=by_number)]
    if run.demands.traces:
        unknown += gaps(run, "traces")
    looked_at = {
        "nodes": len(run.servers),
        "processes that ended": len(run.outcome.deaths),
        "of them unexpected": len(deaths),
        "excused by a fault": len(unordered) - len(found.unexcused) - len(found.not_known),
    }
    return conclude(witnesses, looked_at, unknown)


def _not_known(death: Death) -> str:
    node, reason = death.node, death.reason
    if death.time_ns >= 0:
        return f"{node} ended ({reason}); an ordered fault would excuse this end, but the fault is not proven"
    return f"{node} complained, and it is not known whether the complaint belongs to an excused death: {reason}"


def _excuse(run: StoredRun) -> Excuse:
    return Excuse(run.faults, lambda node: error_ns(run.header, node))


def _deaths(run: StoredRun) -> tuple[list[Death], list[Death]]:
    """Return (deaths that the harness did not order, deaths that it ordered)."""
    deaths = run.outcome.deaths
    return [death for death in deaths if not death.ordered], [death for death in deaths if death.ordered]


def _died(node: str, deaths: Sequence[Death], fatal: Sequence[Row]) -> Witness:
    """Return the violation of a node that died or complained.

    deaths: unexpected deaths of the node and complaints in its log, as in the journal
    """
    reasons = [str(r["detail"]) for r in fatal if r["detail"]]
    seen = [death.reason or f"status {death.status}" for death in deaths]
    found = list(dict.fromkeys(reasons + seen)) or ["no reason is known"]
    found = [each for each in found if not any(other in each for other in found if other != each)]
    more = f"; and {len(found) - _REASONS_MAX} more" if len(found) > _REASONS_MAX else ""
    reason = "; ".join(found[:_REASONS_MAX]) + more
    excerpt = "\n".join(dict.fromkeys(death.excerpt for death in deaths if death.excerpt))
    ended = bool(fatal) or any(death.time_ns >= 0 for death in deaths)
    if ended:
        why = [f"The harness had not ordered {node} to stop.", f"Its log or its exit status shows: {reason}."]
    else:
        why = [f"A line of its log matches a pattern of complaints: {reason}."]
    if excerpt and not any(each in excerpt for each in found):
        why.append(f"Its log: {excerpt}")
    times = [death.time_ns for death in deaths if death.time_ns >= 0] + [r["time_ns"] for r in fatal]
    return Witness.of(
        "node died" if ended else "node complained",
        f"{node} {'died unexpectedly' if ended else 'complained in its log'}: {reason}{_last_line(deaths)}",
        fatal,
        nodes=[node],
        epoch=fatal[0]["epoch"] if fatal else None,
        offset=fatal[0]["offset"] if fatal else None,
        why=why,
        expected="a process that runs until it is ordered to stop" if ended else "a log without complaints",
        time_ns=min(times, default=-1),
        status=next((death.status for death in deaths if death.status), None),
        excerpt=excerpt,
    )


def _last_line(deaths: Sequence[Death]) -> str:
    """Return the last line that a process printed before it ended by itself; "" for a complaint."""
    printed = [death.excerpt for death in deaths if death.excerpt and death.time_ns >= 0]
    if not printed:
        return ""
    lines = printed[0].strip().splitlines()
    if cause := cause_of_end(lines):
        return f"; it printed: {' '.join(cause)[:_LAST_LINE_CHARACTERS]}"
    line = next((line for line in reversed(lines) if not is_note(line)), "")
    return f"; its output ends: {line[-_LAST_LINE_CHARACTERS:]}" if line else ""


def limit_s(run: StoredRun) -> float:
    """Return the seconds within which the system must recover: the limit of the spec, or else of the journal."""
    stated = run.outcome.recovery
    return run.demands.recovery_limit_s or (stated.limit_s if stated is not None else 0.0)


def needed(run: StoredRun) -> bool:
    """Return True if the system has something to recover from, such as any injected fault."""
    stated = run.outcome.recovery
    return stated is None or stated.needed or any(fault.carried_out for fault in run.faults)


def _misstated(run: StoredRun) -> str:
    """Return the reason why the harness' record of recovery cannot be used; "" if it can."""
    stated = run.outcome.recovery
    if stated is None or stated.recovered is None:
        return ""
    begin_ns, end_ns = _recovery_ns(run)
    phase_s = (end_ns - begin_ns) / 1e9 if begin_ns <= end_ns < NEVER else math.inf
    if stated.seconds is not None and not 0 <= stated.seconds <= phase_s + ROUNDED_S:
        return f"recovery took {stated.seconds} s, and the phase of recovery {phase_s:.1f} s"
    missing = [node for node in run.demands.servers if stated.looked_at and node not in stated.looked_at]
    if missing:
        return f"recovery did not look at {', '.join(missing)}"
    alive = [node for node, words in stated.looked_at.items() if "process dead" not in words]
    if bare := [n for n in alive if len(stated.looked_at[n]) < 2 and n not in stated.without_evidence]:
        return f"recovery looked only at the process of {', '.join(bare)}, but does not state this"
    return "" if stated.proof is not None else "the journal contains no proof of the last heal"


def _must_answer(run: StoredRun) -> bool:
    """Return True if only an answer in the main phase can show that the system serves again.

    Older runs, and histories without a spec, do not record the number of clients."""
    recovered = run.outcome.recovery is not None and run.outcome.recovery.recovered is True
    injected = any(fault.carried_out for fault in run.faults)
    return recovered and injected and bool(run.demands.concurrency) and not run.demands.final_reads


def _without_evidence(run: StoredRun) -> list[str]:
    """Return the live servers for which recovery saw only a running process.  Older runs do not record this."""
    recovery = run.outcome.recovery
    return list(recovery.without_evidence) if recovery is not None and recovery.recovered else []


def _evidence(run: StoredRun, answering: Collection[str]) -> dict[str, str]:
    """Return {kind of evidence: servers} in words."""
    at: dict[str, list[str]] = {}
    looked_at = run.outcome.recovery.looked_at if run.outcome.recovery is not None else {}
    for node in sorted(looked_at, key=by_number):
        for words in looked_at[node]:
            at.setdefault(words, []).append(node)
    if answering := set(answering) - {ANY_SERVER}:
        at["a client's answer after the last heal"] = sorted(answering, key=by_number)
    return {"evidence": "; ".join(f"{words}: {', '.join(nodes)}" for words, nodes in at.items())} if at else {}


def _combine_recovery(run: StoredRun, _: Sequence[Any]) -> Verdict:
    if not run.demands.nodes:
        return Verdict(Validity.NOT_APPLICABLE, reason="the system under test has no nodes that could recover")
    recovery = run.outcome.recovery
    if not needed(run):
        return Verdict(Validity.NOT_APPLICABLE, reason="there was nothing to recover from")
    if why := _misstated(run):
        return Verdict(Validity.UNKNOWN, reason=why)
    if recovery is None or recovery.recovered is None:
        why = run.outcome.set_up_failure or "the run ended before recovery was over"
        return Verdict(Validity.UNKNOWN, reason=f"recovery was not watched: {why}")
    answering = _answered(run, _without_evidence(run) + ([ANY_SERVER] if _must_answer(run) else []))
    looked_at = {
        "nodes": len(run.servers),
        "seconds": -1 if recovery.seconds is None else recovery.seconds,
        "limit in seconds": recovery.limit_s or limit_s(run),
        **_evidence(run, answering),
    }
    if recovery.recovered:
        if (seconds := recovery.seconds) is None:
            return Verdict(Validity.UNKNOWN, looked_at, "recovered, but the recovery time is not known")
        if seconds > limit_s(run) + LATE_S:
            reason = f"recovered after {seconds} s, and the limit is {limit_s(run):g} s"
            return Verdict(Validity.UNKNOWN, looked_at, reason)
        lacking = [node for node in _without_evidence(run) if node not in answering]
        unknown = [_nothing_shows(lacking)] if lacking else []
        if _must_answer(run) and ANY_SERVER not in answering:
            unknown.append(_NO_ANSWER)
        gone = unreadable(run, limit_s(run))
        return conclude((gone,) if gone else (), looked_at, unknown)
    if recovery.not_known:
        reason = f"it is not known whether the system recovered: {recovery.waiting_for}"
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    proof = recovery.proof
    ended = _ended_by_themselves(run, proof) if proof is not None else []
    if (proof is None or proof.verdict != PROVEN) and not ended:
        wrong = "there is no proof" if proof is None else "; ".join(proof.wrong) or proof.verdict
        reason = f"not recovered, but the heal was not proven: {wrong}"
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    if not ended and (starved := "; ".join(_out_of_memory(_deaths(run)[0])) or _starved(recovery)):
        return Verdict(Validity.UNKNOWN, looked_at, starved)
    return conclude([_not_recovered(run, recovery, ended)], looked_at)


def _starved(recovery: Recovery) -> str:
    """Return the reason why an exceeded limit shows nothing about the system: its nodes hardly got any CPU time.

    Returns "" if the nodes ran, or if the limit was not exceeded.  Older runs do not record the number of beats that
    agents sent."""
    beats = recovery.beats_sent
    starved = [node for node, share in beats.items() if share < BEATS_LEAST]
    if not starved or (recovery.seconds or 0.0) < recovery.limit_s:
        return ""
    shares = ", ".join(f"{node} {beats[node]:.0%}" for node in sorted(starved, key=by_number))
    return (
        f"not recovered within {recovery.limit_s} s, but nodes hardly got any processor time (share of their "
        f"beacons that they sent: {shares}): use a machine with less load, or a greater --recovery-limit"
    )


def _ended_by_themselves(run: StoredRun, proof: Proof) -> list[str]:
    """Return the servers that ended again after the heal had started them, if nothing else prevents the heal's proof.

    No fault excuses their ends.  So the heal was carried out, and the system itself did not come back."""
    unexcused = _excuse(run).sort(*_deaths(run)).unexcused
    died = {death.node for death in unexcused if not may_be_out_of_memory(death)}
    dead = [node for node, state in proof.states.items() if state == "dead" and node in died]
    explained = {f"{node} ordered running: it is dead" for node in dead}
    return sorted(dead, key=by_number) if explained == set(proof.wrong) else []


_NO_ANSWER = (
    "no client got an answer after the last heal, and the workload reads nothing at the end: so nothing but its own "
    "word shows that the system serves again; let the last fault heal some seconds before the main phase ends"
)


def _nothing_shows(nodes: Sequence[str]) -> str:
    names = ", ".join(sorted(nodes, key=by_number))
    return (
        f"nothing shows that {names} came back: recovery saw only a running process, and no client got an answer there "
        "after the last heal; add `caught_up`, `ready`, or a `status` that names the leader to the system"
    )


def _not_recovered(run: StoredRun, recovery: Recovery, ended: Sequence[str]) -> Witness:
    """Return the violation of a system that did not recover.

    ended: servers that ended by themselves after a restart
    """
    waiting_for = recovery.waiting_for or "the system to catch up"
    seconds, limit_s = recovery.seconds, recovery.limit_s
    return Witness.of(
        "not recovered",
        f"{seconds} s after every fault was healed the system had not recovered; waited for: {waiting_for}",
        nodes=run.servers,
        why=[
            f"Every link was proven open, and {', '.join(ended)} ended after a start that the harness had ordered."
            if ended
            else "Every link was proven open and every process running.",
            f"{seconds} s later the harness still waited for: {waiting_for}",
        ],
        expected=f"a leader, and every live node caught up, within {limit_s} s",
    )


NODES_STAY_UP = checker_of_run(
    "nodes-stay-up",
    "Nodes stay up",
    "Did every process run until the harness stopped it?",
    _combine_deaths,
    frozenset({"history", "nodes"}),
)

RECOVERY = checker_of_run(
    "recovery",
    "Recovery",
    "Did the system recover in time once every fault was healed?",
    _combine_recovery,
    frozenset({"history", "nodes"}),
)


_BY_SIGKILL = (-9, 128 + 9)
"""Exit statuses of a process that was killed, and of a shell whose program was killed."""


def may_be_out_of_memory(death: Death) -> bool:
    """Return True if the kernel's out-of-memory killer may have caused this end, which the harness did not order.

    The killer sends SIGKILL, which looks like a kill by any other process.  So each end records the number of kills on
    the machine since the server started (`oom_kills`).  This number concerns the whole machine and does not prove that
    this server was killed, so the cause of its end is unknown.  Runs of older versions record no number."""
    return death.status in _BY_SIGKILL and death.oom_kills > 0


def _out_of_memory(deaths: Sequence[Death]) -> list[str]:
    """Return one clause for each node whose end shows nothing about the system, because memory may have run out."""
    killed = sorted({death.node for death in deaths if may_be_out_of_memory(death)}, key=by_number)
    words = "as far as is known: give the machine more memory or the run fewer nodes"
    return [f"the kernel's out-of-memory killer ended the server of {node}, {words}" for node in killed]


# Servers that answered clients after the last heal, from the history.  An answer of a server proves that this server
# has recovered, even if the system has no status.  An answer of any server proves that the system serves again.


NEVER = 1 << 62
ANY_SERVER = "any server"
"""Pseudo-name of a server that stands for the first answer of any server."""


def _answered(run: StoredRun, nodes: Sequence[str]) -> set[str]:
    """Return the servers that gave a client an ok answer after the last heal and after their own last death.

    nodes: the servers in question, which may include ANY_SERVER; the history is read only if there are any"""
    if not nodes:
        return set()
    with history_tables(run.history) as sql:
        latest = dict(sql.execute("SELECT node, max(time_ns) FROM events WHERE type = 1 GROUP BY node").fetchall())
    latest[ANY_SERVER] = max(latest.values(), default=-1)
    healed_ns = _last_heal_ns(run)
    return {node for node in nodes if latest.get(node, -1) >= max(healed_ns, _last_end_ns(run, node))}


def _last_heal_ns(run: StoredRun) -> int:
    """Return the time of the last heal, or the begin of the recovery phase if only this phase healed a fault."""
    healed = [fault.healed_ns for fault in run.faults if fault.carried_out]
    return max(healed, default=0) if min(healed, default=0) >= 0 else _recovery_ns(run)[0]


def _last_end_ns(run: StoredRun, node: str) -> int:
    """Return the time of the last end of the server's process before recovery was over; 0 if it never ended."""
    over_ns = _recovery_ns(run)[1]
    ends = (death.time_ns for death in run.outcome.deaths if death.node == node)
    return max((at_ns for at_ns in ends if at_ns <= over_ns), default=0)


def _recovery_ns(run: StoredRun) -> tuple[int, int]:
    """Return (begin, end) of the recovery phase; NEVER for a time that the run did not reach."""
    phase = run.outcome.phase("recovery")
    return (phase.start_ns, phase.end_ns) if phase is not None else (NEVER, NEVER)
