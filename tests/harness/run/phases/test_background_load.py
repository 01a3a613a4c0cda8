"""A load beside the test is called until its phase is over, and stands in no history."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from checkers.base.history import Type
from harness.run.phases import _load, background_of
from system_under_test.client import MISTAKE_IN_CODE, Outcome, Request
from system_under_test.own.read_own_system import CodeMistake

WORKLOAD = SimpleNamespace(background={"fetch_all": 2, "list_all": 1})


def a_run(invoke: Any) -> Any:
    host, spec = SimpleNamespace(invoke=invoke), SimpleNamespace(concurrency=10, op_timeout_s=2.0)
    clock = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(0))
    return SimpleNamespace(workload=WORKLOAD, spec=spec, hosts={"c1": host, "c2": host}, clock=clock)


def test_its_clients_are_numbered_behind_those_of_the_test() -> None:
    clients = background_of(a_run(None))
    assert [(p.thread, p.client_node, f) for p, f in clients.items()] == [
        (10, "c1", "fetch_all"),
        (11, "c2", "fetch_all"),
        (12, "c1", "list_all"),
    ]


async def test_it_goes_on_after_a_failure_and_ends_with_its_phase() -> None:
    over, asked = asyncio.Event(), []

    async def invoke(thread: int, request: Request, timeout_s: float) -> Outcome:
        asked.append((thread, request.f))
        if len(asked) == 5:
            over.set()
        return Outcome(Type.FAIL if len(asked) == 2 else Type.OK, error="torn")

    run = a_run(invoke)
    await _load(run, *next(iter(background_of(run).items())), over)
    assert asked == [(10, "fetch_all")] * 5


async def test_a_mistake_in_its_code_ends_the_run() -> None:
    async def invoke(thread: int, request: Request, timeout_s: float) -> Outcome:
        return Outcome(Type.FAIL, error=f"{MISTAKE_IN_CODE}mine.py line 7: NameError: name 'grops' is not defined")

    run = a_run(invoke)
    with pytest.raises(CodeMistake, match=r"^mine.py line 7: NameError"):
        await _load(run, *next(iter(background_of(run).items())), asyncio.Event())
