"""What watches a run while it goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from journals import recorded, write_header, write_journal
from waiting import eventually

from checkers.base.columns import TRACE
from checkers.base.history import Type
from checkers.base.results import as_object
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import HARNESS_FAILED, Validity
from checkers.judging import judge_run
from checkers.online import LIVE, NewEntries, OnlineFinding
from checkers.record.header_and_outcome import OnlineViolation, ProcessorSums
from checkers.registers.checker import LINEARIZABILITY
from checkers.sealing.seal import seal
from harness.backends.backend import HostHealth
from harness.judge.judge_run import contradictions, judge
from harness.run import watching
from harness.run.clock import MACHINE
from harness.run.recorder import Recorder
from harness.run.watching import Online, RunWatch
from system_under_test.client import Outcome, Request
from system_under_test.subject import Collected, NodeGone, NodeStatus
from tests.support.records_of_runs import results_in

CHECKERS = ("linearizability", "election-safety", "vote-once", "monotonicity")


NOTHING = NewEntries("n1", LIVE, np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64))


class Written:
    """A recorder whose batches go to online checks, and what these found."""

    def __init__(self, folder: Path, checkers: tuple[str, ...] = CHECKERS) -> None:
        self.found: list[OnlineFinding] = []
        stream = folder / "history.arrows"
        self.notes: list[str] = []
        self.online = Online(stream, checkers, MACHINE, lambda: 7, self.notes.append)
        self.online.found = self.collect
        self.recorder = Recorder(stream, MACHINE, self.online.hand_over)

    async def collect(self, findings: Sequence[OnlineFinding], time_ns: int) -> None:
        self.found += findings

    def asks(self, process: int, f: str, value: int | None, answer: int | None) -> None:
        request = Request(f, "k1", value)
        self.recorder.invoke(process, request)
        self.recorder.complete(process, request, Outcome(Type.OK, answer, node="n1"))

    async def look(self) -> None:
        self.recorder.flush()
        await self.online.look()


class FakeLive:
    """What a node adds: one table a look; an exception is raised instead."""

    def __init__(self, *looks: list[dict[str, Any]] | Exception) -> None:
        self.left = list(looks)
        self.now: list[dict[str, Any]] = []

    async def fetch(self) -> None:
        now = self.left.pop(0)
        if isinstance(now, Exception):
            raise now
        self.now = now

    def trace(self) -> pa.Table:
        return pa.Table.from_pylist(self.now, TRACE)

    def entries(self) -> NewEntries:
        return NOTHING

    def tail(self, copy: Collected) -> NewEntries:
        return NOTHING


def row(node: str, seq: int, event: str, epoch: int, **columns: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(TRACE.names)
    return (
        nothing | {"node": node, "incarnation": 0, "seq": seq, "time_ns": seq, "event": event, "epoch": epoch} | columns
    )


async def test_a_stale_read_is_reported_once_with_the_witness_of_the_sealed_judgement(tmp_path: Path) -> None:
    run = Written(tmp_path)
    run.asks(0, "write", 1, 1)
    await run.look()
    assert run.found == []
    run.asks(1, "read", None, None)
    await run.look()
    await run.look()
    (finding,) = run.found
    assert (finding.checker, finding.witness.kind, finding.witness.facts["key"]) == (
        "linearizability",
        "stale read",
        "k1",
    )
    assert run.online.record.findings[0].time_ns == 7
    assert (run.online.record.completions, run.online.record.looks, run.online.record.failure) == (2, 3, "")


async def test_a_finding_is_withdrawn_once_its_key_contradicts_itself(tmp_path: Path) -> None:
    """The sealed run calls such a key unknown, and so no judge contradicts the other."""
    run = Written(tmp_path)
    run.asks(0, "write", 1, 1)
    run.asks(1, "read", None, None)
    await run.look()
    assert [finding.key for finding in run.online.record.findings] == ["k1"]
    run.asks(0, "write", 2, 3)
    await run.look()
    assert run.online.record.findings == ()
    run.recorder.close()
    seal(tmp_path)
    verdict = judge_run(StoredRun(tmp_path), [LINEARIZABILITY])["linearizability"]
    assert verdict.validity is Validity.UNKNOWN
    assert "write of 2 was acknowledged as 3" in verdict.reason


async def test_a_workload_that_linearizability_does_not_judge_is_not_looked_at(tmp_path: Path) -> None:
    run = Written(tmp_path, checkers=("vacuity",))
    run.asks(0, "write", 1, 1)
    run.asks(1, "read", None, None)
    await run.look()
    assert run.found == []


async def test_two_votes_in_one_epoch_are_found_though_the_agent_did_not_answer_in_between(tmp_path: Path) -> None:
    run = Written(tmp_path)
    first, second = row("n1", 0, "vote", 3, peer="n2"), row("n1", 1, "vote", 3, peer="n3")
    silent = FakeLive([first], NodeGone("n1: its agent is gone"), [second])
    run.online.follow({"n1": silent, "n2": FakeLive([], [], [])})
    await run.look()
    await run.look()
    assert run.found == []
    await run.look()
    assert [f.checker for f in run.found] == ["vote-once"]
    assert run.online.record.trace_rows == 2


async def test_a_check_that_breaks_is_reported_and_the_run_goes_on(tmp_path: Path) -> None:
    run = Written(tmp_path)
    run.online.follow({"n1": BrokenLive()})
    watching = asyncio.create_task(run.online.watch())
    await eventually(lambda: run.online.record.failure)
    assert run.online.record.failure == "UnreadableRow: line 3 is no row"
    assert not watching.done(), "a duty that ends would end the run"
    assert len(run.notes) == 1 and "line 3 is no row" in run.notes[0]
    watching.cancel()


class BrokenLive(FakeLive):
    async def fetch(self) -> None:
        return None

    def trace(self) -> pa.Table:
        raise UnreadableRow("line 3 is no row")


class UnreadableRow(ValueError):
    pass


def test_what_the_sealed_run_does_not_confirm_is_a_contradiction() -> None:
    online = [OnlineViolation("vote-once", "voted twice in one epoch", "n1 voted twice.")]
    assert contradictions(online, results_in({"checkers": {"vote-once": {"verdict": "invalid"}}})) == []
    assert contradictions([], results_in({"checkers": {"vote-once": {"verdict": "valid"}}})) == []
    for verdict in ("valid", "unknown"):
        (words,) = contradictions(online, results_in({"checkers": {"vote-once": {"verdict": verdict}}}))
        assert "n1 voted twice" in words and f"that checker is {verdict}" in words
    assert len(contradictions(online, results_in({}))) == 1


@pytest.mark.parametrize("stale", [False, True])
def test_a_sealed_run_that_contradicts_the_online_checks_is_shouted_and_never_valid(
    tmp_path: Path, stale: bool, kept_run: Callable[[bool], Path]
) -> None:
    run = kept_run(stale)
    outcome = recorded(run, "outcome")
    claim = {"checker": "linearizability", "kind": "stale read", "summary": "k1 was stale.", "time_ns": 1}
    write_journal(run, outcome=outcome | {"online": {"findings": [claim]}})
    results = as_object(judge(run, None, lambda _: None))
    page = (run / "report.html").read_text()
    if stale:
        assert (results["verdict"], results["exit_code"]) == ("invalid", 1)
        assert "contradiction" not in results
        return
    assert (results["verdict"], results["exit_code"]) == ("unknown", HARNESS_FAILED)
    assert "contradicts itself" in results["summary"] and "k1 was stale" in results["summary"]
    assert json.loads((run / "results.json").read_text())["exit_code"] == HARNESS_FAILED
    assert "contradicts itself" in page


@pytest.fixture
def kept_run(tmp_path: Path) -> Callable[[bool], Path]:
    """A folder as a run of the canary leaves it."""

    def keep(stale: bool) -> Path:
        folder = tmp_path / "run"
        folder.mkdir()
        run = Written(folder)
        run.asks(0, "write", 1, 1)
        run.asks(1, "read", None, None if stale else 1)
        run.recorder.close()
        spec = {"subject": "canary", "nemesis": "none", "nodes": 1, "keys": 1, "seed": 1}
        write_header(folder, spec=spec, started_monotonic_ns=0, rerun="again")
        declares = dict.fromkeys(("nodes", "logs", "traces", "elections", "faults"), False)
        write_journal(folder, outcome={"declares": declares, "final_reads": {"k1": "ok"}})
        return folder

    return keep


class Reports:
    """A watch over nodes that report what `says` holds, None for a silent one."""

    def __init__(self, *nodes: str) -> None:
        self.says: dict[str, NodeStatus | None] = dict.fromkeys(nodes)
        self.now_ns = 0

        async def status(node: Any) -> NodeStatus | None:
            return self.says[node.name]

        subject, recorder = SimpleNamespace(status=status), SimpleNamespace(now_ns=lambda: self.now_ns)
        named: Any = [SimpleNamespace(name=name) for name in nodes]
        self.watch = RunWatch(subject, named, recorder, SimpleNamespace())  # type: ignore[arg-type]

    async def ask(self, now_ns: int, **says: NodeStatus | None) -> None:
        self.says |= says
        self.now_ns = now_ns
        await self.watch.ask()

    def kept(self, *names: str) -> list[tuple[Any, ...]]:
        return [tuple(getattr(report, name) for name in names) for report in self.watch.reports]


async def test_each_change_of_a_report_is_kept_once_and_grows_while_it_stands() -> None:
    reports = Reports("n1", "n2")
    for at_ns in (1, 2, 3):
        await reports.ask(at_ns, n1=NodeStatus("n1", 1, "leader", "n1"))
    await reports.ask(4, n1=NodeStatus("n1", 2, "follower", "n2"), n2=NodeStatus("n2", 2, "leader", "n2"))
    await reports.ask(5, n1=NodeStatus("n1", 1, "leader", "n1"))
    assert reports.kept("node", "epoch", "role", "leader", "time_ns", "until_ns", "looks") == [
        ("n1", 1, "leader", "n1", 1, 3, 3),
        ("n1", 2, "follower", "n2", 4, 4, 1),
        ("n2", 2, "leader", "n2", 4, 5, 2),
        ("n1", 1, "leader", "n1", 5, 5, 1),
    ]


async def test_a_report_does_not_stand_through_a_silence() -> None:
    """A leader that cannot be asked for a while may have been anything meanwhile."""
    reports = Reports("n1")
    for at_ns in (1, 2, 3, 9):
        await reports.ask(at_ns, n1=None if at_ns == 3 else NodeStatus("n1", 1, "leader", "n1"))
    assert reports.kept("time_ns", "until_ns", "looks") == [(1, 2, 2), (9, 9, 1)]


async def test_a_report_names_the_disk_of_a_node_that_names_it() -> None:
    reports = Reports("n1", "n2")
    await reports.ask(1, n1=NodeStatus("n1", 3, "follower", "n2", disk="a"), n2=NodeStatus("n2", 3, "leader", "n2"))
    await reports.ask(1, n1=NodeStatus("n1", 3, "follower", "n2", disk="b"))
    assert reports.kept("node", "disk") == [("n1", "a"), ("n2", ""), ("n1", "b")]


async def test_a_report_that_no_place_was_left_for_ends_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "REPORTS_MAX", 1)
    reports = Reports("n1")
    for at_ns, epoch in ((10, 1), (20, 2), (30, 1)):
        await reports.ask(at_ns, n1=NodeStatus("n1", epoch, "follower", "n2"))
    assert reports.kept("epoch", "until_ns", "looks") == [(1, 10, 1)]


async def test_a_report_has_the_time_of_its_own_answer() -> None:
    """A paused node answers late, and what the others said before is no newer for it."""
    now = {"ns": 1}
    resumed = asyncio.Event()

    async def status(node: Any) -> NodeStatus:
        if node.name == "paused":
            await resumed.wait()
        return NodeStatus(node.name, 2, "follower", "n3")

    nodes: Any = [SimpleNamespace(name="paused"), SimpleNamespace(name="n2")]
    subject: Any = SimpleNamespace(status=status)
    recorder: Any = SimpleNamespace(now_ns=lambda: now["ns"])
    watch = RunWatch(subject, nodes, recorder, SimpleNamespace())  # type: ignore[arg-type]
    asked = asyncio.ensure_future(watch.ask())
    await asyncio.sleep(0)  # both are asked
    await asyncio.sleep(0)  # n2 has answered
    now["ns"] = 9
    resumed.set()
    await asked
    assert [(report.node, report.time_ns) for report in watch.reports] == [("paused", 9), ("n2", 1)]


async def test_each_sample_is_kept_with_its_time() -> None:
    now = {"ns": 0}
    enough = asyncio.Event()

    async def health() -> HostHealth:
        now["ns"] += 5
        if now["ns"] == 15:
            enough.set()
        return HostHealth({}, {"n1": {"pressure_s": now["ns"] / 10, "waited_s": 0.1}, "c1": {}})

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    recorder: Any = SimpleNamespace(now_ns=lambda: now["ns"])
    watch = RunWatch(SimpleNamespace(), [], recorder, SimpleNamespace(sleep=sleep))  # type: ignore[arg-type]
    duty = asyncio.create_task(watch.mind_the_machine(health))
    await enough.wait()
    duty.cancel()
    await asyncio.gather(duty, return_exceptions=True)
    assert watch.processor["n1"][:2] == [
        ProcessorSums(0, pressure_s=0.5, waited_s=0.1),
        ProcessorSums(5, pressure_s=1.0, waited_s=0.1),
    ]
    assert watch.processor["c1"] == []
