"""The phases of a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from checkers.base.history import Type
from checkers.record.faults import Proof
from checkers.record.header_and_outcome import Recovery
from harness.run import phases
from harness.run import phases as phase
from harness.run.clock import MACHINE, RunClock, clock_of
from harness.spec import Spec
from nemesis.cluster import CALM_INTERVAL_MS
from system_under_test.client import MISTAKE_IN_CODE, Outcome, Placement, Request
from system_under_test.own.read_own_system import BrokenSystem, CodeMistake
from system_under_test.subject import Declares, LookedAt
from workloads.objects import GrowSet, SetConvergence


def loop_clock() -> RunClock:
    return clock_of(asyncio.get_running_loop(), datetime.now(UTC))


def everything(live: Collection[str]) -> dict[str, LookedAt]:
    return dict.fromkeys(live, LookedAt(("caught_up()",)))


def node(state: str) -> Any:
    async def of_the_node() -> str:
        return state

    return SimpleNamespace(name="n1", state=of_the_node)


class Beating:
    """Of the beats that are due, the agent of n1 sends this share."""

    def __init__(self, share: float) -> None:
        self.share = share

    async def mark(self) -> dict[tuple[str, str], int]:
        due = asyncio.get_running_loop().time() * 1e3 / CALM_INTERVAL_MS
        return {("n1", "n2"): round(due * self.share), ("c1", "n1"): round(due)}


async def test_set_up_ends_as_soon_as_a_server_is_dead() -> None:
    async def ready(_: object) -> str:
        return "the server of n1 is dead; its server.log ends: no licence"

    subject: Any = SimpleNamespace(ready=ready)
    with pytest.raises(phases.SetUpFailed, match=r"^the server of n1 is dead; its server\.log ends: no licence"):
        await phases.until_ready(subject, [node("running"), node("dead")], loop_clock(), lambda _: None)


@pytest.fixture
def heals_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def healed(*_: object, **__: object) -> Proof:
        return Proof(verdict="as ordered")

    monkeypatch.setattr(phase, "heal_all", healed)


async def recovered(caught_up: Callable[..., Any], share: float = 1.0) -> Recovery:
    """The recovery of one server, whose system is asked by `caught_up`."""
    subject: Any = SimpleNamespace(caught_up=caught_up, looked_at=everything, declares=Declares())
    cluster: Any = Beating(share)
    recovery = phases.SystemRecovery(subject, [node("running")], 5, 30.0, loop_clock(), lambda _: None)
    await recovery.run(cluster, ())
    return recovery.found


@pytest.mark.virtual_time
@pytest.mark.usefixtures("heals_at_once")
@pytest.mark.parametrize("tries", [2, 10**9])
async def test_a_caught_up_that_is_broken_is_called_again_and_proves_nothing(tries: int) -> None:
    left = iter(range(tries))

    async def caught_up(*_: object) -> None:
        if next(left, None) is not None:
            raise BrokenSystem("mine.py line 9: caught_up raised KeyError: 'n1'")

    found = await recovered(caught_up)
    assert (found.recovered, found.not_known) == (tries == 2, tries > 2)


@pytest.mark.virtual_time
@pytest.mark.usefixtures("heals_at_once")
@pytest.mark.parametrize("answers", [0, 1])
async def test_a_caught_up_that_never_returns_ends_with_the_limit(answers: int) -> None:
    left = iter(range(answers))

    async def caught_up(*_: object) -> str:
        if next(left, None) is None:
            await asyncio.sleep(10**6)
        return "n1 is behind"

    found = await recovered(caught_up, share=0.1)
    assert (found.recovered, found.seconds) == (False, pytest.approx(30.0, abs=0.01))
    assert found.beats_sent == {"n1": pytest.approx(0.1, abs=0.01)}, "how much it ran meanwhile"
    assert found.not_known == (answers == 0), "a call that never answered shows nothing of the system"


def test_the_reason_that_lasted_is_named_and_not_the_last_poll() -> None:
    reasons = phase.WaitReasons()
    for second in range(1, 59):
        reasons.lasted(f"n2 lacks {90 - second} entries", second)
    reasons.lasted("n1 says nothing: Connection reset", 60.0)
    assert reasons.words() == (
        "n2 lacks 32 entries (for 97% of the time; at the end: n1 says nothing: Connection reset)"
    )
    reasons.lasted("n2 lacks 1 entries", 61.0)
    assert reasons.words() == "n2 lacks 1 entries"


WORKLOAD = SimpleNamespace(background={"fetch_all": 2, "list_all": 1})


def a_run(invoke: Any) -> Any:
    spec = SimpleNamespace(concurrency=10, op_timeout_s=2.0, rng=lambda stream: Random(f"71/{stream}"))
    host = SimpleNamespace(invoke=invoke)
    clock = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(0))
    return SimpleNamespace(workload=WORKLOAD, spec=spec, hosts={"c1": host, "c2": host}, clock=clock)


def test_its_clients_are_numbered_behind_those_of_the_test() -> None:
    clients = phases.background_of(a_run(None))
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
    await phases._load(run, *next(iter(phases.background_of(run).items())), over)
    assert asked == [(10, "fetch_all")] * 5


async def test_a_mistake_in_its_code_ends_the_run() -> None:
    async def invoke(thread: int, request: Request, timeout_s: float) -> Outcome:
        return Outcome(Type.FAIL, error=f"{MISTAKE_IN_CODE}mine.py line 7: NameError: name 'grops' is not defined")

    run = a_run(invoke)
    with pytest.raises(CodeMistake, match=r"^mine.py line 7: NameError"):
        await phases._load(run, *next(iter(phases.background_of(run).items())), asyncio.Event())


async def test_the_values_of_its_requests_follow_from_the_seed_and_the_client() -> None:
    async def values_of(at: int) -> list[int | None]:
        over, values = asyncio.Event(), list[int | None]()

        async def invoke(thread: int, request: Request, timeout_s: float) -> Outcome:
            values.append(request.value)
            if len(values) == 5:
                over.set()
            return Outcome(Type.OK)

        run = a_run(invoke)
        await phases._load(run, *[*phases.background_of(run).items()][at], over)
        return values

    first, again, other = [await values_of(at) for at in (0, 0, 1)]
    assert first == again
    assert len({*first, *other}) == 10


class AtEnd(GrowSet):
    final_needs_recovery = True


class Asked:
    """Stands for the interpreter: notes what it is asked, and every read is ok."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, float, list[int]]] = []
        self.answers: list[list[int]] = []

    async def until_ok(
        self,
        requests: Sequence[Request],
        limit_s: float,
        follow: Callable[[str], None] = print,
        askers: Sequence[Placement] = (),
        heard: Callable[[Request, Outcome], None] = lambda request, outcome: None,
    ) -> dict[str, str]:
        for request in requests if askers else ():
            heard(request, Outcome(Type.OK, payload=json.dumps(self.answers.pop() if self.answers else [1, 2])))
        self.asked.append((len(requests), limit_s, [placement.thread for placement in askers]))
        return {str(request.key): "ok" for request in requests}


async def read(
    workload: GrowSet, recovered: bool = True, asked: Asked | None = None
) -> tuple[phases.FinalReads, Asked, list[str]]:
    """Read two servers.  asked: by default one who is always answered the same."""
    interpreter: Any = asked or Asked()
    said: list[str] = []
    reads = phases.FinalReads(workload, interpreter, Spec().placements(), MACHINE)
    await reads.run(recovered, 60.0, ("n1", "n2"), said.append)
    return reads, interpreter, said


async def test_every_object_is_read_and_each_server_by_a_client_of_its_own() -> None:
    reads, interpreter, _ = await read(GrowSet(3))
    assert reads.by_key == dict.fromkeys(("k0", "k1", "k2"), "ok")
    assert reads.by_server == {"n1": reads.by_key, "n2": reads.by_key}
    assert interpreter.asked[0] == (3, 60.0, [])
    assert [threads[0] % 2 for _, _, threads in interpreter.asked[1:]] == [0, 1]


async def test_an_object_that_one_server_answered_was_read() -> None:
    class Slow(Asked):
        async def until_ok(self, requests: Any, limit_s: float, *words: Any, **options: Any) -> dict[str, str]:
            ok = await super().until_ok(requests, limit_s, *words, **options)
            return ok if self.asked[-1][2][:1] == [1] else dict.fromkeys(ok, "timeout")

    reads, _, _ = await read(GrowSet(1), asked=Slow())
    assert reads.by_key == {"k0": "ok"}
    assert reads.by_server == {"n1": {"k0": "timeout"}, "n2": {"k0": "ok"}}


async def test_a_system_that_has_not_recovered_is_read_for_a_short_time() -> None:
    """A loss or a difference must be seen, also where only a recovered system promises an answer."""
    reads, interpreter, _ = await read(AtEnd(2), recovered=False)
    assert {limit_s for _, limit_s, _ in interpreter.asked} == {phases.UNRECOVERED_LIMIT_S}
    assert reads.by_server.keys() == {"n1", "n2"}


async def test_servers_that_must_come_to_answer_the_same_are_read_until_they_do() -> None:
    """Two servers of one set: the first two rounds differ, and in the third only the order does."""
    asked = Asked()
    asked.answers = [[1, 2], [2, 1], [2], [1, 2], [], [1]]
    _, _, said = await read(SetConvergence(1), asked=asked)
    assert asked.answers == []
    assert said == ["the servers do not answer the same yet"] * 2
    asked.answers = [[9], [1], [2]]
    await read(GrowSet(1), asked=asked)
    assert asked.answers == [[9]], "others are read once, whatever they answer"
