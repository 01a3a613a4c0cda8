"""The interpreter: one operation at a time per process, both ends recorded, unknown outcomes retire."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from checkers.base.columns import read_history
from checkers.base.history import Type
from harness.run.clock import clock_of
from harness.run.interpreter import Interpreter
from harness.run.recorder import Recorder
from harness.spec import Spec
from system_under_test.client import CANNOT_BE_MADE, Outcome, Request
from system_under_test.own.read_own_system import CodeMistake
from workloads.generators import Generator, Step, Turn, Wait
from workloads.objects import Register

pytestmark = pytest.mark.virtual_time

Answer = Callable[[int, Request], Outcome]


class FakeHost:
    """Answers as ordered, after a while."""

    def __init__(self, answer: Answer, delay_s: float = 0.0) -> None:
        self._answer = answer
        self._delay_s = delay_s
        self.busy: set[int] = set()

    async def invoke(self, thread: int, request: Request, timeout_s: float) -> Outcome:
        assert thread not in self.busy, "one operation at a time per thread"
        self.busy.add(thread)
        await asyncio.sleep(self._delay_s)
        self.busy.discard(thread)
        return self._answer(thread, request)


def build(folder: Path, host: FakeHost, **spec: Any) -> tuple[Interpreter, Recorder, Spec]:
    wanted = Spec(**spec)
    clock = clock_of(asyncio.get_running_loop(), datetime.now(UTC))
    recorder = Recorder(folder / "history.arrows", clock)
    hosts: Any = {"c1": host, "c2": host}
    return Interpreter(wanted.placements(), hosts, recorder, 1.0, clock), recorder, wanted


async def drive(interpreter: Interpreter, spec: Spec, seconds: float) -> None:
    register = Register(spec.keys)
    await interpreter.run(
        register.generator,
        lambda p: spec.rng(f"operations/{p.thread}"),
        lambda p: spec.rng(f"pace/{p.thread}"),
        spec.rate_hz,
        asyncio.get_running_loop().time() + seconds,
    )


async def test_a_process_never_has_two_open_operations_and_retires_after_info(tmp_path: Path) -> None:
    rng = Random(1)
    host = FakeHost(lambda _, __: Outcome(rng.choice([Type.OK, Type.FAIL, Type.INFO])), delay_s=0.001)
    interpreter, recorder, spec = build(tmp_path, host, rate_hz=2000.0)
    await drive(interpreter, spec, 0.5)
    recorder.close()
    open_by: dict[int, dict[str, Any]] = {}
    retired: set[int] = set()
    for row in read_history(tmp_path).to_pylist():
        process = row["process"]
        assert process not in retired
        if row["type"] == Type.INVOKE:
            assert process not in open_by
            open_by[process] = row
        else:
            assert open_by.pop(process)["f"] == row["f"]
            if row["type"] == Type.INFO:
                retired.add(process)
    assert not open_by, "the run ends when the last outcome is known"
    assert retired
    threads = {process % spec.concurrency for process in retired}
    assert len(threads) > 1


async def test_the_rate_wanted_is_the_rate_achieved_though_answers_take_time(tmp_path: Path) -> None:
    interpreter, recorder, spec = build(tmp_path, FakeHost(lambda *_: Outcome(Type.OK), 0.01), rate_hz=200.0)
    await drive(interpreter, spec, 3.0)
    recorder.close()
    assert 450 <= interpreter.tally.invoked <= 750


@pytest.mark.parametrize("rate_hz", [0.2, 0.0])
async def test_a_run_that_is_ended_asks_nothing_more_and_waits_for_what_is_under_way(
    tmp_path: Path, rate_hz: float
) -> None:
    interpreter, recorder, spec = build(tmp_path, FakeHost(lambda *_: Outcome(Type.OK), 0.05), rate_hz=rate_hz)
    asyncio.get_running_loop().call_later(0.12, interpreter.end)
    began = asyncio.get_running_loop().time()
    await drive(interpreter, spec, 60.0)
    assert asyncio.get_running_loop().time() - began < 2.0
    recorder.close()
    rows = read_history(tmp_path).to_pylist()
    assert sum(r["type"] == Type.INVOKE for r in rows) == sum(r["type"] == Type.OK for r in rows)


async def test_a_request_that_no_client_can_be_given_ends_the_run_and_is_not_recorded(tmp_path: Path) -> None:
    interpreter, recorder, spec = build(tmp_path, FakeHost(lambda *_: Outcome(Type.OK)))
    interpreter.wrong_request = Register(spec.keys).wrong_request
    with pytest.raises(CodeMistake, match="workload register invokes 'raed'; its functions: read, write"):
        await interpreter.ask(spec.placements()[0], Request("raed", "k0"))
    assert (await interpreter.ask(spec.placements()[0], Request("read", "k0"))).type is Type.OK
    recorder.close()
    assert [row["f"] for row in read_history(tmp_path).to_pylist()] == ["read", "read"]


async def test_until_ok_tries_again_and_reports_what_never_came(tmp_path: Path) -> None:
    failures = {"k0": 2, "k1": 10**9}

    def answer(_: int, request: Request) -> Outcome:
        failures[request.key or ""] = failures.get(request.key or "", 0) - 1
        return Outcome(Type.OK) if failures[request.key or ""] < 0 else Outcome(Type.FAIL, error="no leader")

    interpreter, recorder, _ = build(tmp_path, FakeHost(answer))
    result = await interpreter.until_ok([Request("read", k) for k in ("k0", "k1", "k2")], limit_s=0.6)
    recorder.close()
    assert result == {"k0": "ok", "k1": "no leader", "k2": "ok"}


async def test_until_ok_hands_a_request_that_failed_to_the_next_thread(tmp_path: Path) -> None:
    """The clients of a dead server would ask it for ever."""
    asked: list[int] = []

    def answer(thread: int, request: Request) -> Outcome:
        asked.append(thread)
        return Outcome(Type.FAIL if thread == asked[0] else Type.OK)

    interpreter, recorder, _ = build(tmp_path, FakeHost(answer))
    assert await interpreter.until_ok([Request("read", "k0")], limit_s=60.0) == {"k0": "ok"}
    recorder.close()
    assert len(set(asked)) > 1


async def test_until_ok_can_be_left_to_the_clients_of_one_server(tmp_path: Path) -> None:
    asked: list[int] = []

    def answer(thread: int, _: Request) -> Outcome:
        asked.append(thread)
        return Outcome(Type.OK)

    interpreter, recorder, spec = build(tmp_path, FakeHost(answer))
    one = [p for p in spec.placements() if p.thread == 4]
    assert await interpreter.until_ok([Request("read", "k0"), Request("read", "k1")], 1.0, askers=one)
    recorder.close()
    assert asked == [4, 4]


async def test_until_ok_ends_at_once_where_no_client_can_ever_be_made(tmp_path: Path) -> None:
    error = f"not sent: {CANNOT_BE_MADE}mine.py line 3: invalid syntax"
    interpreter, recorder, _ = build(tmp_path, FakeHost(lambda *_: Outcome(Type.FAIL, error=error)))
    result = await interpreter.until_ok([Request("create", k) for k in ("k0", "k1", "k2")], limit_s=1e9)
    recorder.close()
    assert result == dict.fromkeys(("k0", "k1", "k2"), error)


class Scripted(Generator):
    """Waits, asks once, and is exhausted unless the answer was ok."""

    def __init__(self, steps: tuple[Step, ...] = (Wait(0.01), Request("read", "k"))) -> None:
        self.steps = steps

    def next(self, turn: Turn) -> tuple[Step, Generator]:
        return (self.steps[0], Scripted(self.steps[1:])) if self.steps else (None, self)

    def heard(self, request: Request, outcome: Outcome) -> Generator:
        return Scripted((Request("write", "k", 1),)) if outcome.type is Type.OK and request.f == "read" else self


async def test_a_generator_may_wait_hears_outcomes_and_ends_its_thread(tmp_path: Path) -> None:
    def answer(thread: int, _: Request) -> Outcome:
        return Outcome(Type.OK if thread == 0 else Type.FAIL)

    interpreter, recorder, spec = build(tmp_path, FakeHost(answer), rate_hz=0.0)
    await interpreter.run(
        lambda p: Scripted(),
        lambda p: Random(p.thread),
        lambda p: Random(p.thread),
        0.0,
        asyncio.get_running_loop().time() + 60.0,
    )
    recorder.close()
    invoked = [(r["process"], r["f"]) for r in read_history(tmp_path).to_pylist() if r["type"] == Type.INVOKE]
    assert sorted(invoked) == sorted([*((t, "read") for t in range(spec.concurrency)), (0, "write")])
