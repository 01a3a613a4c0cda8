"""What a node reports of itself is kept as it changes, with how long it stood."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from harness.run import watching
from harness.run.watching import RunWatch
from system_under_test.subject import NodeStatus


async def test_each_change_of_a_report_is_kept_once_and_grows_while_it_stands() -> None:
    now = {"ns": 0}
    says: dict[str, NodeStatus | None] = {"n1": NodeStatus("n1", 1, "leader", "n1"), "n2": None}

    async def status(node: Any) -> NodeStatus | None:
        return says[node.name]

    nodes: Any = [SimpleNamespace(name="n1"), SimpleNamespace(name="n2")]
    subject: Any = SimpleNamespace(status=status)
    recorder: Any = SimpleNamespace(now_ns=lambda: now["ns"])
    watch = RunWatch(subject, nodes, recorder, SimpleNamespace())  # type: ignore[arg-type]
    for at_ns in (1, 2, 3):
        now["ns"] = at_ns
        await watch.ask()
    says |= {"n1": NodeStatus("n1", 2, "follower", "n2"), "n2": NodeStatus("n2", 2, "leader", "n2")}
    now["ns"] = 4
    await watch.ask()
    says["n1"] = NodeStatus("n1", 1, "leader", "n1")
    now["ns"] = 5
    await watch.ask()
    names = ("node", "epoch", "role", "leader", "time_ns", "until_ns", "looks")
    kept = [tuple(getattr(report, name) for name in names) for report in watch.reports]
    assert kept == [
        ("n1", 1, "leader", "n1", 1, 3, 3),
        ("n1", 2, "follower", "n2", 4, 4, 1),
        ("n2", 2, "leader", "n2", 4, 5, 2),
        ("n1", 1, "leader", "n1", 5, 5, 1),
    ]


async def test_a_report_does_not_stand_through_a_silence() -> None:
    """A leader that cannot be asked for a while may have been anything meanwhile."""
    now = {"ns": 0}
    says: dict[str, NodeStatus | None] = {"n1": NodeStatus("n1", 1, "leader", "n1")}

    async def status(node: Any) -> NodeStatus | None:
        return says[node.name]

    recorder: Any = SimpleNamespace(now_ns=lambda: now["ns"])
    subject: Any = SimpleNamespace(status=status)
    watch = RunWatch(subject, [SimpleNamespace(name="n1")], recorder, SimpleNamespace())  # type: ignore[arg-type, list-item]
    for at_ns, silent in ((1, False), (2, False), (3, True), (9, False)):
        now["ns"] = at_ns
        says["n1"] = None if silent else NodeStatus("n1", 1, "leader", "n1")
        await watch.ask()
    assert [(r.time_ns, r.until_ns, r.looks) for r in watch.reports] == [(1, 2, 2), (9, 9, 1)]


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


async def test_a_report_names_the_disk_of_a_node_that_names_it() -> None:
    says = {"n1": NodeStatus("n1", 3, "follower", "n2", disk="a"), "n2": NodeStatus("n2", 3, "leader", "n2")}

    async def status(node: Any) -> NodeStatus:
        return says[node.name]

    nodes: Any = [SimpleNamespace(name="n1"), SimpleNamespace(name="n2")]
    subject: Any = SimpleNamespace(status=status)
    recorder: Any = SimpleNamespace(now_ns=lambda: 1)
    watch = RunWatch(subject, nodes, recorder, SimpleNamespace())  # type: ignore[arg-type]
    await watch.ask()
    says["n1"] = NodeStatus("n1", 3, "follower", "n2", disk="b")
    await watch.ask()
    assert [(r.node, r.disk) for r in watch.reports] == [("n1", "a"), ("n2", ""), ("n1", "b")]


async def test_a_report_that_no_place_was_left_for_ends_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "REPORTS_MAX", 1)
    says = iter((1, 2, 1))
    now = iter(range(10, 100, 10))

    async def status(node: Any) -> NodeStatus:
        return NodeStatus("n1", next(says), "follower", "n2")

    recorder: Any = SimpleNamespace(now_ns=lambda: next(now))
    subject: Any = SimpleNamespace(status=status)
    watch = RunWatch(subject, [SimpleNamespace(name="n1")], recorder, SimpleNamespace())  # type: ignore[arg-type, list-item]
    for _ in range(3):
        await watch.ask()
    assert [(r.epoch, r.until_ns, r.looks) for r in watch.reports] == [(1, 10, 1)]
