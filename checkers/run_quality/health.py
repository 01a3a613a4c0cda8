"""Did every node stay up, and did the system recover once it could?

It is a violation in itself if a node dies unexpectedly or refuses to go on.  The witness gives the reason.  A subject
that stops by design (at a truncation below the high watermark) thereby reports that another promise was broken.

There is one excuse.  A fault may announce that processes of its nodes may end because of it (`may_die`): a server whose
disk fails cannot know what the disk holds, so it is right to end.  The excuse holds only for nodes of that fault, from
its inject to its heal, and only if its measurements show that it was in force.

Where nodes write no traces, a server that ends before the system was ever ready violates nothing: most often its
configuration is wrong.  Then the verdict is unknown.

A server whose files were damaged may refuse to start again.  Where the fault announces that too (`may_stay_down`), the
excuse holds until the end of the run.

Recovery is a promise about time.  So it is judged only if measurements *proved* that every fault was healed.  A system
that has not caught up within the limit after that violates it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from checkers.base.checker import Budget, Checker, Part
from checkers.base.clocks import error_ns
from checkers.base.json_file import mapping, number, sequence
from checkers.base.run_evidence import conclude, gaps, read_trace
from checkers.base.stored_run import StoredRun, by_number, node_files, was_ordered
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.raft.witness_rows import Row, rows_of
from checkers.run_quality.faults_installed import INSTALLED, achieved

END_OF_TIME = 1 << 62
PROVEN = "as ordered"
"""The `verdict` of a heal's proof (`nemesis.faults.Proof`) if everything was healed."""


def _split_traces(run: StoredRun) -> list[Part]:
    return [Part((path,), {"node": node}) for node, path in node_files(run.trace).items()]


def _judge_fatal(part: Part, budget: Budget) -> list[Row]:
    """The rows in which the node reported that it refuses to go on."""
    return rows_of(read_trace(part.paths[0], ("fatal",)))


def _combine_deaths(run: StoredRun, findings: Sequence[list[Row]]) -> Verdict:
    facts = run.outcome
    if not run.demands.nodes:
        return Verdict(Validity.NOT_APPLICABLE, reason="the system under test has no nodes")
    excuse = Excuse(run.faults, run.demands.ledger, lambda node: error_ns(run.test, node))
    fatal = [row for rows in findings for row in rows if not excuse.covers(row["node"], row["time_ns"])]
    unordered = [death for death in facts.get("deaths") or [] if not was_ordered(death)]
    deaths = excuse.without_excused(unordered)
    names = dict.fromkeys([str(death.get("node") or "a node") for death in deaths] + [r["node"] for r in fatal])
    witnesses = [
        _died(
            node,
            [death for death in deaths if str(death.get("node") or "a node") == node],
            [r for r in fatal if r["node"] == node],
        )
        for node in sorted(names, key=by_number)
    ]
    unknown = [] if "deaths" in facts else ["outcome.json does not list the processes that died"]
    if facts.get("set_up_failure") and not run.demands.traces:
        unknown += [f"{witness.summary}, before the system was ever ready" for witness in witnesses]
        witnesses = []
    if run.demands.traces:
        unknown += gaps(run, "traces")
    looked_at = {
        "nodes": len(run.servers),
        "processes that ended": len(facts.get("deaths") or []),
        "of them unexpected": len(deaths),
        "excused by a fault": len(unordered) - len(deaths),
    }
    return conclude(witnesses, looked_at, unknown)


class Excuse:
    """Which deaths and refusals a fault explains.

    records: faults.json.  measured: whether each record must hold measurements.  clock_error_ns: node -> how wrong a
    time of that node may be.  An excuse is longer by this at both ends, so a death at the edge of a fault is excused.
    """

    def __init__(
        self, records: Sequence[Mapping[str, Any]], measured: bool, clock_error_ns: Callable[[str], int]
    ) -> None:
        self._spans: list[tuple[str, int, int]] = []
        for record in records:
            began_ns, healed_ns = number(record.get("injected_ns"), -1), number(record.get("healed_ns"), -1)
            order_ns = (
                max(number(record.get("apply_ms"), 0), 0) * 1_000_000
            )  # the order may take effect before it returns
            settings = mapping(record.get("settings"))
            may_die = settings.get("may_die") is True
            until_ns = END_OF_TIME if settings.get("may_stay_down") is True else healed_ns
            if may_die and began_ns >= 0 and achieved(record, demanded=measured).word == INSTALLED:
                for node in map(str, sequence(record.get("nodes"))):
                    error = clock_error_ns(node)
                    self._spans.append((node, began_ns - order_ns - error, until_ns + error))

    def covers(self, node: str, time_ns: int) -> bool:
        """Whether such a fault held on the node at that time."""
        return any(name == node and began <= time_ns <= healed for name, began, healed in self._spans)

    def without_excused(self, deaths: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The deaths that no fault explains.

        A complaint in a node's log has no time.  So for each excused death of a node, one of its complaints is excused.
        """
        kept: list[Mapping[str, Any]] = []
        excused: dict[str, int] = {}
        for death in sorted(deaths, key=lambda d: number(d.get("time_ns"), -1) < 0):
            node, time_ns = str(death.get("node")), number(death.get("time_ns"), -1)
            if time_ns >= 0 and self.covers(node, time_ns):
                excused[node] = excused.get(node, 0) + 1
            elif time_ns < 0 and excused.get(node, 0) > 0:
                excused[node] -= 1
            else:
                kept.append(death)
        return kept


def _died(node: str, deaths: Sequence[Mapping[str, Any]], fatal: Sequence[Row]) -> Witness:
    """deaths: unexpected deaths of this node, and complaints in its own log, both as in outcome.json."""
    reasons = [str(r["detail"]) for r in fatal if r["detail"]]
    seen = [str(d.get("reason") or f"status {d.get('status', 'unknown')}") for d in deaths]
    reason = "; ".join(dict.fromkeys(reasons + seen)) or "no reason is known"
    excerpt = "\n".join(dict.fromkeys(str(d["excerpt"]) for d in deaths if d.get("excerpt")))
    why = [f"The harness had not ordered {node} to stop.", f"Its log or its exit status shows: {reason}."]
    if excerpt:
        why.append(f"Its log: {excerpt}")
    times = [d["time_ns"] for d in deaths if d.get("time_ns", -1) >= 0] + [r["time_ns"] for r in fatal]
    return Witness(
        kind="node died",
        summary=f"{node} died unexpectedly: {reason}",
        rows=tuple(fatal),
        facts={
            "nodes": [node],
            "epoch": fatal[0]["epoch"] if fatal else None,
            "offset": fatal[0]["offset"] if fatal else None,
            "why": why,
            "expected": "a process that runs until it is ordered to stop",
            "time_ns": min(times, default=-1),
            "status": next((d["status"] for d in deaths if d.get("status")), None),
            "excerpt": excerpt,
        },
    )


def _split_nothing(run: StoredRun) -> list[Part]:
    """No parts: `_combine_recovery` needs only outcome.json."""
    return []


def _judge_nothing(part: Part, budget: Budget) -> None:
    return None


def _combine_recovery(run: StoredRun, findings: Sequence[None]) -> Verdict:
    facts = run.outcome
    if not run.demands.nodes:
        return Verdict(Validity.NOT_APPLICABLE, reason="the system under test has no nodes that could recover")
    recovery = facts.get("recovery") or {}
    if recovery.get("needed") is False:
        return Verdict(Validity.NOT_APPLICABLE, reason="there was nothing to recover from")
    if "recovered" not in recovery:
        why = facts.get("set_up_failure") or "the run ended before recovery was over"
        return Verdict(Validity.UNKNOWN, reason=f"recovery was not watched: {why}")
    looked_at = {
        "nodes": len(run.servers),
        "seconds": recovery.get("seconds", -1),
        "limit in seconds": recovery.get("limit_s", -1),
    }
    if recovery["recovered"]:
        return conclude((), looked_at)
    if recovery.get("not_known"):
        reason = f"whether the system recovered is not known: {recovery.get('waiting_for')}"
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    proof = recovery.get("proof") or {}
    if proof.get("verdict") != PROVEN:
        wrong = "; ".join(proof.get("wrong") or ()) or str(proof.get("verdict") or "there is no proof")
        reason = f"not recovered, but the heal was not proven: {wrong}"
        return Verdict(Validity.UNKNOWN, looked_at, reason)
    return conclude([_not_recovered(run, recovery)], looked_at)


def _not_recovered(run: StoredRun, recovery: Mapping[str, Any]) -> Witness:
    waiting_for = recovery.get("waiting_for") or "the system to catch up"
    seconds, limit_s = recovery.get("seconds"), recovery.get("limit_s")
    return Witness(
        kind="not recovered",
        summary=f"{seconds} s after every fault was healed the system had not recovered; waited for: {waiting_for}",
        facts={
            "nodes": run.servers,
            "epoch": None,
            "offset": None,
            "why": [
                "Every link was proven open and every process running.",
                f"{seconds} s later the harness still waited for: {waiting_for}",
            ],
            "expected": f"a leader, and every live node caught up, within {limit_s} s",
        },
    )


NODES_STAY_UP = Checker(
    name="nodes-stay-up",
    title="Nodes stay up",
    question="Did every process run until the harness stopped it?",
    split=_split_traces,
    judge=_judge_fatal,
    combine=_combine_deaths,
    needs=frozenset({"history", "nodes"}),
)

RECOVERY = Checker(
    name="recovery",
    title="Recovery",
    question="Did the system recover in time once every fault was healed?",
    split=_split_nothing,
    judge=_judge_nothing,
    combine=_combine_recovery,
    needs=frozenset({"history", "nodes"}),
)
