"""Online checks at their rim: what they are fed with, what they tell, and what happens where they fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
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
from checkers.judging.pipeline import judge_run
from checkers.online import LIVE, NewEntries, OnlineFinding
from checkers.record.outcome import OnlineViolation
from checkers.registers.checker import LINEARIZABILITY
from checkers.sealing.seal import seal
from harness.judge.judge_run import contradictions, judge
from harness.run.clock import MACHINE
from harness.run.recorder import Recorder
from harness.run.watching import Online
from system_under_test.client import Outcome, Request
from system_under_test.subject import Collected, NodeGone
from tests.support.results_of_runs import results_in

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
