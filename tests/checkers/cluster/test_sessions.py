"""Fencing judged by traces: a toy quorum of three with brokers, in which each rule holds, and is violated once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from toy_quorum import Evidence, Quorum

from checkers.base.checker import BeyondBudget, Budget
from checkers.base.columns import CLUSTER
from checkers.base.verdict import Validity, Verdict
from checkers.catalog import CATALOG
from checkers.cluster import sessions as rules
from checkers.judging import judge_run

CHECKER = CATALOG["broker-sessions"]
SECOND = 1_000_000_000
SESSION_S = 3
PARTITION = "ab" * 16 + "/0"


class Story:
    """n1 is the active controller from the start on, and sessions last three seconds."""

    def __init__(self) -> None:
        self.quorum = Quorum(size=3)
        self.records: list[dict[str, Any]] = []
        self.quorum.elect("n1")
        self.quorum.replicate()
        self.say("n1", "sessions", offset=1, detail=str(SESSION_S * 1000))

    def say(self, node: str, event: str, **columns: Any) -> None:
        self.quorum._say(self.quorum.nodes[node], event, **columns)

    def wait(self, seconds: float) -> None:
        """Let all nodes commit twice a second, so that every trace continues."""
        for _ in range(int(seconds * 2)):
            self.quorum.pass_time(SECOND // 2)
            self.quorum.write()

    def record(self, kind: str, about: str, followers: set[str] | None = None, **fields: Any) -> int:
        """Let n1 append a record. followers: nodes that fetch it and learn that it is committed, by default all."""
        offset = len(self.quorum.nodes["n1"].log)
        if kind == "register broker":
            plain = {"incarnation": "a", "epoch": offset, "rack": None, "fenced": True, "leaving": False}
            fields = plain | fields
        row = {"offset": offset, "batch_offset": offset, "epoch": 1, "kind": kind, "about": about}
        self.records.append(row | {"node": "n1", "fields": json.dumps(fields)})
        self.quorum.write(followers=followers)
        return offset

    def serves(self, broker: int = 3) -> int:
        """Register and unfence the broker of this node; return its epoch."""
        epoch = self.record("register broker", f"broker {broker}")
        self.say(f"n{broker}", "broker", offset=epoch, detail="heard 1000")
        self.record("change broker", f"broker {broker}", epoch=epoch, fenced=-1)
        return epoch

    def evidence(self) -> Evidence:
        return self.quorum.evidence()

    def judged(self, folder: Path, evidence: Evidence | None = None) -> Verdict:
        run = (evidence or self.evidence()).write(folder)
        final = max(copy["copy"] for copy in run.copies)
        run.cluster.mkdir()
        rows = pa.Table.from_pylist([row | {"copy": final} for row in self.records], CLUSTER)
        for node in self.quorum.nodes:
            pq.write_table(rows, run.cluster / f"{node}.parquet")
        return judge_run(run, [CHECKER])[CHECKER.name]


def kinds(verdict: Verdict) -> list[str]:
    return [witness.kind for witness in verdict.witnesses]


def test_a_broker_whose_heartbeats_are_answered_is_not_fenced(tmp_path: Path) -> None:
    story = Story()
    epoch = story.serves()
    story.wait(5)
    assert story.judged(tmp_path / "serves").validity is Validity.VALID
    story.record("change broker", "broker 3", epoch=epoch, fenced=1)
    story.wait(2)
    verdict = story.judged(tmp_path / "fenced")
    assert kinds(verdict) == [rules.FENCED_THOUGH_HEARD] and verdict.validity is Validity.INVALID
    assert {row["event"] for row in verdict.witnesses[0].rows if row["table"] == "trace"} == {"append", "broker"}


@pytest.mark.parametrize(
    ("detail", "at_once"), [("unheard 3400", False), ("leaving 200", False), ("leaving 200", True)]
)
def test_a_broker_that_was_silent_or_leaves_may_be_fenced(tmp_path: Path, detail: str, at_once: bool) -> None:
    """at_once: its own controller fences it at the moment in which it leaves."""
    story = Story()
    epoch = story.serves()
    story.wait(5)
    story.say("n3", "broker", offset=epoch, detail=detail)
    fenced = story.record("change broker", "broker 3", epoch=epoch, fenced=1)
    story.wait(2)
    evidence = story.evidence()
    if at_once:
        append = next(r for r in evidence.traces["n1"] if (r["event"], r["offset"]) == ("append", fenced + 1))
        next(r for r in evidence.traces["n3"] if r["detail"] == detail)["time_ns"] = append["time_ns"]
    verdict = story.judged(tmp_path, evidence)
    assert verdict.validity is Validity.VALID and verdict.looked_at["fences"] == 1


@pytest.mark.parametrize("killed", [False, True])
def test_a_process_that_slept_reports_its_silence_late_or_is_killed_at_once(tmp_path: Path, killed: bool) -> None:
    """It was stopped for six seconds and fenced meanwhile.  Its first rows come before it looks at the time, and prove
    nothing about the time before them."""
    story = Story()
    epoch = story.serves()
    story.wait(2)
    story.quorum.pass_time(6 * SECOND)
    story.record("change broker", "broker 3", {"n2"}, epoch=epoch, fenced=1)
    story.quorum.replicate()
    if killed:
        story.quorum.crash("n3")
    else:
        story.say("n3", "broker", offset=epoch, detail="unheard 6300")
    story.wait(2)
    assert story.judged(tmp_path).validity is Validity.VALID


def stopped(evidence: Evidence, node: str, from_ns: int, to_ns: int) -> Evidence:
    evidence.faults = [
        {"nodes": [node], "cut": [], "injected_ns": from_ns, "heal_ordered_ns": to_ns, "healed_ns": to_ns}
    ]
    return evidence


def test_a_broker_that_is_stopped_for_long_is_fenced_while_the_controller_commits(tmp_path: Path) -> None:
    for fenced in (True, False):
        story = Story()
        epoch = story.serves()
        story.wait(1)
        from_ns = story.quorum._time_ns
        story.say("n3", "broker", offset=epoch, detail="unheard 1000")
        story.wait(4)
        if fenced:
            story.record("change broker", "broker 3", epoch=epoch, fenced=1)
        story.wait(4)
        verdict = story.judged(tmp_path / str(fenced), stopped(story.evidence(), "n3", from_ns, story.quorum._time_ns))
        assert verdict.looked_at["silences"] == 1
        assert kinds(verdict) == ([] if fenced else [rules.NEVER_FENCED])


def test_a_silence_that_a_controller_may_not_have_noticed_proves_nothing(tmp_path: Path) -> None:
    """It is short, or the controller is new."""
    story = Story()
    story.serves()
    story.wait(1)
    from_ns = story.quorum._time_ns
    story.wait(4)
    short = story.judged(tmp_path / "short", stopped(story.evidence(), "n3", from_ns, story.quorum._time_ns))
    assert short.validity is Validity.VALID and short.looked_at["silences"] == 0
    story.quorum.elect("n2")
    story.quorum.replicate()
    story.say("n2", "sessions", offset=30, detail="3000")
    story.wait(4)
    new = story.judged(tmp_path / "new", stopped(story.evidence(), "n3", from_ns, story.quorum._time_ns))
    assert new.validity is Validity.VALID and new.looked_at["silences"] == 0


def test_a_broker_is_unfenced_once_it_knows_its_registration(tmp_path: Path) -> None:
    story = Story()
    story.serves()
    epoch = story.record("register broker", "broker 2", {"n3"})
    story.say("n2", "broker", offset=epoch, detail="heard 1000")
    story.record("change broker", "broker 2", {"n3"}, epoch=epoch, fenced=-1)
    story.wait(1)
    verdict = story.judged(tmp_path / "early")
    assert kinds(verdict) == [rules.UNFENCED_EARLY] and verdict.looked_at["unfences"] == 2


def test_a_leader_adds_to_its_in_sync_set_only_what_it_knows(tmp_path: Path) -> None:
    for knows in (True, False):
        story = Story()
        story.serves(2), story.serves(3)
        made = {"replicas": [2, 3], "isr": [2], "removing": [], "adding": [], "leader": 2}
        story.record("partition", PARTITION, **made)
        story.record("change partition", PARTITION, None if knows else {"n3"}, isr=[2])
        story.record("change partition", PARTITION, {"n3"}, isr=[2, 3])
        story.wait(1)
        verdict = story.judged(tmp_path / str(knows))
        assert kinds(verdict) == ([] if knows else [rules.JOINED_EARLY]) and verdict.looked_at["joins"] == 1


@pytest.mark.parametrize(
    ("shown", "alarms"),
    [
        (-1, True),  # it left no file, so it was no clean shutdown
        ("an older epoch", True),
        ("the last epoch", False),
        (None, False),  # no row shows how it restarted
    ],
)
def test_a_broker_that_came_back_uncleanly_is_no_eligible_leader(
    shown: int | str | None, alarms: bool, tmp_path: Path
) -> None:
    for taken_out in (False, True):
        story = Story()
        former = story.serves(3)
        story.record("partition", PARTITION, replicas=[2, 3], isr=[2], removing=[], adding=[], leader=2)
        story.record("change broker", "broker 3", epoch=former, fenced=1)
        story.record("change partition", PARTITION, isr=[2], elr=[3])
        epoch = story.record("register broker", "broker 3", incarnation="b")
        if taken_out:
            story.record("change partition", PARTITION, elr=None)
        if shown is not None:
            previous = {"the last epoch": former, "an older epoch": former - 1}.get(str(shown), shown)
            story.say("n3", "broker", offset=epoch, detail=f"registered {previous} b")
        story.say("n3", "broker", offset=epoch, detail="unheard -1")
        story.record("change broker", "broker 3", epoch=epoch, fenced=-1)
        story.wait(1)
        verdict = story.judged(tmp_path / str(taken_out))
        assert kinds(verdict) == ([rules.STAYS_ELIGIBLE] if alarms and not taken_out else [])
        assert verdict.looked_at["unclean registrations"] == alarms


def test_only_the_incarnation_that_reported_is_judged_by_its_report(tmp_path: Path) -> None:
    """A record of another one lies at the same offset, as in a log whose tail was cut off."""
    story = Story()
    former = story.serves(3)
    story.record("partition", PARTITION, replicas=[2, 3], isr=[2], removing=[], adding=[], leader=2, elr=[3])
    epoch = story.record("register broker", "broker 3", incarnation="b")
    story.say("n3", "broker", offset=epoch, detail="registered -1 c")
    story.record("change broker", "broker 3", epoch=epoch, fenced=-1)
    story.wait(1)
    assert former < epoch and kinds(story.judged(tmp_path)) == []


@pytest.mark.parametrize("known", ["all know", "one controller may not know", "another one replaced it", "no answer"])
def test_a_registered_incarnation_that_asks_again_is_not_refused_because_of_itself(known: str, tmp_path: Path) -> None:
    story = Story()
    story.quorum.elect("n2")
    story.quorum.replicate()
    story.say("n2", "sessions", offset=1, detail=str(SESSION_S * 1000))
    story.quorum.elect("n1")
    story.quorum.replicate()
    story.record("register broker", "broker 3", {"n3"} if known == "one controller may not know" else None)
    if known == "another one replaced it":
        story.record("register broker", "broker 3", incarnation="b")
    if known != "one controller may not know":
        story.wait(1)
    else:
        story.quorum.pass_time(SECOND)
    if known != "no answer":
        story.say("n3", "broker", offset=-1, detail="refused 100 a")
    story.say("n3", "broker", offset=-1, detail="unheard -1")
    story.wait(1)
    for row in story.records:
        row["epoch"] = story.quorum.nodes["n1"].epoch
    verdict = story.judged(tmp_path)
    assert kinds(verdict) == ([rules.REFUSED_ITSELF] if known == "all know" else [])
    assert verdict.looked_at["refusals"] == (known != "no answer")


def test_without_one_clock_or_reports_of_brokers_it_does_not_apply(tmp_path: Path) -> None:
    story = Story()
    epoch = story.serves()
    story.wait(5)
    story.record("change broker", "broker 3", epoch=epoch, fenced=1)
    story.wait(2)
    apart = story.evidence()
    apart.test["nodes_clock"] = "own"
    assert story.judged(tmp_path / "apart", apart).validity is Validity.NOT_APPLICABLE
    silent = story.evidence()
    silent.traces = {
        node: [row | {"seq": seq} for seq, row in enumerate(r for r in rows if r["event"] != "broker")]
        for node, rows in silent.traces.items()
    }
    assert story.judged(tmp_path / "silent", silent).validity is Validity.NOT_APPLICABLE


def test_a_budget_that_is_too_small_makes_it_unknown(tmp_path: Path) -> None:
    story = Story()
    story.serves()
    run = story.evidence().write(tmp_path)
    [part] = CHECKER.split(run)
    with pytest.raises(BeyondBudget):
        CHECKER.judge(part, Budget(size_bytes=10))
