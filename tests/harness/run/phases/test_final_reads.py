"""Final reads: each object until it is ok, once more at each server, and for a short time without recovery."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from checkers.base.history import Type
from harness.run.clock import MACHINE
from harness.run.phases import UNRECOVERED_LIMIT_S, FinalReads
from harness.spec import Spec
from system_under_test.client import Outcome, Placement, Request
from workloads.objects import GrowSet
from workloads.registers import SetConvergence


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


async def read(workload: GrowSet, recovered: bool, servers: Sequence[str] = ()) -> tuple[FinalReads, Asked]:
    interpreter: Any = Asked()
    reads = FinalReads(workload, interpreter, Spec().placements(), MACHINE)
    await reads.run(recovered, 60.0, servers, lambda _: None)
    return reads, interpreter


async def test_every_object_is_read_and_each_server_by_a_client_of_its_own() -> None:
    reads, interpreter = await read(GrowSet(3), True, ("n1", "n2"))
    assert reads.by_key == dict.fromkeys(("k0", "k1", "k2"), "ok")
    assert reads.by_server == {"n1": reads.by_key, "n2": reads.by_key}
    assert interpreter.asked[0] == (3, 60.0, [])
    assert [threads[0] % 2 for _, _, threads in interpreter.asked[1:]] == [0, 1]


async def test_a_system_that_has_not_recovered_is_read_for_a_short_time() -> None:
    """A loss or a difference must be seen, also where only a recovered system promises an answer."""
    reads, interpreter = await read(AtEnd(2), False, ("n1", "n2"))
    assert {limit_s for _, limit_s, _ in interpreter.asked} == {UNRECOVERED_LIMIT_S}
    assert reads.by_server.keys() == {"n1", "n2"}


async def test_servers_that_must_come_to_answer_the_same_are_read_until_they_do() -> None:
    """Two servers of one set: the first two rounds differ, and in the third only the order does."""
    interpreter: Any = Asked()
    interpreter.answers = [[1, 2], [2, 1], [2], [1, 2], [], [1]]
    reads = FinalReads(SetConvergence(1), interpreter, Spec().placements(), MACHINE)
    said: list[str] = []
    await reads.run(True, 60.0, ("n1", "n2"), said.append)
    assert interpreter.answers == []
    assert said == ["the servers do not answer the same yet"] * 2


async def test_others_are_read_once_whatever_they_answer() -> None:
    interpreter: Any = Asked()
    interpreter.answers = [[9], [1], [2]]
    reads = FinalReads(GrowSet(1), interpreter, Spec().placements(), MACHINE)
    await reads.run(True, 60.0, ("n1", "n2"), lambda _: None)
    assert interpreter.answers == [[9]]
