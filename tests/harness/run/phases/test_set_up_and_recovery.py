"""Set-up ends with the first dead server, and recovery knows what it does not know."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from checkers.record.faults import Proof
from harness.run import phases as phase
from harness.run.clock import RunClock, clock_of
from harness.run.phases import SetUpFailed, SystemRecovery, until_ready
from nemesis.cluster import CALM_INTERVAL_MS
from system_under_test.own.read_own_system import BrokenSystem
from system_under_test.subject import Declares, LookedAt


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
    with pytest.raises(SetUpFailed, match=r"^the server of n1 is dead; its server\.log ends: no licence"):
        await until_ready(subject, [node("running"), node("dead")], loop_clock(), lambda _: None)


@pytest.fixture
def heals_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def healed(*_: object, **__: object) -> Proof:
        return Proof(verdict="as ordered")

    monkeypatch.setattr(phase, "heal_all", healed)


@pytest.mark.usefixtures("heals_at_once")
@pytest.mark.parametrize("tries", [2, 10**9])
async def test_a_caught_up_that_is_broken_is_called_again_and_proves_nothing(tries: int) -> None:
    left = iter(range(tries))

    async def caught_up(*_: object) -> None:
        if next(left, None) is not None:
            raise BrokenSystem("mine.py line 9: caught_up raised KeyError: 'n1'")

    subject, cluster = SimpleNamespace(caught_up=caught_up, looked_at=everything, declares=Declares()), Beating(1.0)
    recovery = SystemRecovery(subject, [node("running")], 5, 0.5 if tries > 2 else 60.0, loop_clock(), lambda _: None)  # type: ignore[arg-type]
    await recovery.run(cluster, ())  # type: ignore[arg-type]
    assert (recovery.found.recovered, recovery.found.not_known) == (tries == 2, tries > 2)


@pytest.mark.virtual_time
@pytest.mark.usefixtures("heals_at_once")
@pytest.mark.parametrize("answers", [0, 1])
async def test_a_caught_up_that_never_returns_ends_with_the_limit(answers: int) -> None:
    left = iter(range(answers))

    async def caught_up(*_: object) -> str:
        if next(left, None) is None:
            await asyncio.sleep(10**6)
        return "n1 is behind"

    subject: Any = SimpleNamespace(caught_up=caught_up, looked_at=everything, declares=Declares())
    cluster: Any = Beating(1.0)
    recovery = SystemRecovery(subject, [node("running")], 5, 30.0, loop_clock(), lambda _: None)
    await recovery.run(cluster, ())
    found = recovery.found
    assert (found.recovered, found.seconds) == (False, pytest.approx(30.0, abs=0.01))
    assert found.not_known == (answers == 0), "a call that never answered shows nothing of the system"


@pytest.mark.virtual_time
@pytest.mark.usefixtures("heals_at_once")
@pytest.mark.parametrize("share", [1.0, 0.1])
async def test_it_is_recorded_how_much_the_servers_ran_while_they_recovered(share: float) -> None:
    async def caught_up(*_: object) -> str:
        return "n1 is behind"

    subject: Any = SimpleNamespace(caught_up=caught_up, looked_at=everything, declares=Declares())
    cluster: Any = Beating(share)
    recovery = SystemRecovery(subject, [node("running")], 5, 30.0, loop_clock(), lambda _: None)
    await recovery.run(cluster, ())
    assert not recovery.found.recovered
    assert recovery.found.beats_sent == {"n1": pytest.approx(share, abs=0.01)}


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
