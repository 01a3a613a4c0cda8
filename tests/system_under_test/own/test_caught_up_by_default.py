"""What recovery looks at where a system has no `caught_up`: its `status` and its `ready`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkers.record.faults import Proof
from harness.registry import load_subject
from harness.run import phases as phase
from harness.run.clock import MACHINE
from harness.run.phases import SystemRecovery
from system_under_test.own.subject import Subject
from system_under_test.subject import Completed, NotKnown

SYSTEM = """
from krucible import Client, System

class Mine(System):
    async def start(self, node, nodes):
        return "exec true"

{methods}

class MyClient(Client):
    def read(self, key):
        return None

    def write(self, key, value):
        return None
"""
STATUS = "    async def status(self, node):\n        return node.reports(*{}[node.name])"


def node(name: str, state: str = "running") -> Any:
    async def state_of() -> str:
        return state

    async def ran(*_: object, **__: object) -> object:
        return Completed(0, b"", b"")

    verbs = {"state": state_of, "run": ran, "write": ran, "start": ran}
    return SimpleNamespace(
        name=name, address="", data_dir="/d", log_dir="/l", trace_dir="/t", python=["python3"], **verbs
    )


async def made(tmp_path: Path, methods: str, nodes: list[Any]) -> Subject:
    path = tmp_path / "mine.py"
    path.write_text(SYSTEM.format(methods=methods))
    subject = load_subject(str(path))
    assert isinstance(subject, Subject)
    await subject.install(nodes, seed=1, bug=None)
    return subject


NOTHING, READY = "", "    async def ready(self, nodes):\n        return None"
CAUGHT_UP = "    async def caught_up(self, nodes):\n        return None"
AGREED = STATUS.format({"n1": (3, "n1"), "n2": (3, "n1")})
SILENT_FOLLOWER = STATUS.format({"n1": (3, "n1"), "n2": (3, None)})


@pytest.mark.parametrize(
    ("methods", "at_n2", "without_evidence"),
    [
        (NOTHING, [], ["n1", "n2"]),
        (READY, ["ready()"], []),
        (CAUGHT_UP, ["caught_up()"], []),
        (AGREED, ["status: epoch and leader"], []),
        (SILENT_FOLLOWER, ["status: epoch, no leader"], ["n2"]),
        (f"{SILENT_FOLLOWER}\n\n{READY}", ["status: epoch, no leader", "ready()"], []),
    ],
)
async def test_recovery_records_what_it_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, methods: str, at_n2: list[str], without_evidence: list[str]
) -> None:
    async def healed(*_: object, **__: object) -> Proof:
        return Proof(verdict="as ordered")

    monkeypatch.setattr(phase, "heal_all", healed)
    nodes = [node("n1"), node("n2")]
    recovery = SystemRecovery(await made(tmp_path, methods, nodes), nodes, 5, 60.0, MACHINE, lambda _: None)

    async def no_beats() -> dict[tuple[str, str], int]:
        return {}

    await recovery.run(SimpleNamespace(mark=no_beats), ())
    assert recovery.found.recovered is True
    assert recovery.found.looked_at["n2"] == ("process running", *at_n2)
    assert recovery.found.without_evidence == tuple(without_evidence)


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (STATUS.format({"n1": (3, "n1"), "n2": (2, "n2")}), "do not agree: n1 takes n1 for the leader, n2 takes n2"),
        (STATUS.format({"n1": (3, None), "n2": (3, "n1")}), "n1 does not report that it leads"),
        ("    async def ready(self, nodes):\n        return 'n2 is new'", "after the heal `ready` says: n2 is new"),
        ("    async def ready(self, nodes):\n        return 1 / 0", "ready raised ZeroDivisionError"),
        (STATUS.format({}), "status raised KeyError"),
    ],
)
async def test_what_settles_nothing_is_neither_recovered_nor_a_violation(
    tmp_path: Path, methods: str, words: str
) -> None:
    nodes = [node("n1"), node("n2")]
    subject = await made(tmp_path, methods, nodes)
    with pytest.raises(NotKnown) as problem:
        await subject.caught_up(nodes, 1)
    assert words in str(problem.value)


async def test_a_leader_that_is_dead_settles_nothing(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2", "dead"), node("n3")]
    subject = await made(tmp_path, STATUS.format({"n1": (3, "n2"), "n3": (3, "n2")}), nodes)
    with pytest.raises(NotKnown, match="the server of n2 is dead"):
        await subject.caught_up(nodes, 1)


async def test_ready_may_demand_every_server_so_it_is_not_called_where_one_is_dead(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2", "dead")]
    subject = await made(tmp_path, "    async def ready(self, nodes):\n        return 'n2 is missing'", nodes)
    assert await subject.caught_up(nodes, 1) is None
    assert {name: seen.words for name, seen in subject.looked_at(["n1"]).items()} == {"n1": ()}


async def test_a_server_that_gives_no_status_has_not_caught_up(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2")]
    subject = await made(tmp_path, "    async def status(self, node):\n        return None", nodes)
    assert await subject.caught_up(nodes, 1) == "n1 gives no status"
