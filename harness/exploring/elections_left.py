"""Whether a leader can still be elected: no order of steps may leave voters that wait for one another for ever.

A state is looked at in which no server leads, and a log names other voters than the cluster began with.  All servers
are started again, all links are whole, and from then on everything arrives.  Servers wait no longer for a leader, one
of them again and again, or all in turn.  If a leader commits something of its own epoch in one of these futures, then a
leader can be elected.

That takes timers that ring in a good order, as those of a real cluster do sooner or later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.exploring.parts import Parts, Promises, Rest
from harness.exploring.rules import Broken
from harness.exploring.steps import LEFT, Budgets, ClusterSteps, ExploredState
from harness.exploring.voter import ExploredVoter
from system_under_test.kraft.raft.states import Leader
from system_under_test.kraft.raft.voters import VoterSet

ROUNDS, MESSAGES_OF_A_ROUND = 12, 60
MANY = 1000


class ElectionsLeft:
    """steps: of the cluster that is explored; voters: as there."""

    def __init__(self, steps: ClusterSteps, voters: int, bug: str) -> None:
        many = Budgets(**dict.fromkeys(("epochs", "timeouts", "looks"), MANY), changes=steps.budgets.changes)
        self._explored: Parts = steps.parts
        self._steps = ClusterSteps(voters, many, bug, spares=len(steps.ids) - voters)
        self._rest = self._steps.parts.number(Rest(tuple(getattr(many, name) for name in LEFT)))
        self._known: dict[tuple[tuple[int, ...], frozenset[int]], bool] = {}

    def check(self, world: ExploredState) -> None:
        """Raises Broken."""
        nodes = [self._explored.node(number) for number in world.voters]
        if any(map(_leads, nodes)) or not any(map(_names_others, nodes)):
            return
        known = (world.voters, frozenset(world.calls))
        if known not in self._known:
            self._known[known] = any(self._elects(world, turns) for turns in self._turns())
        if not self._known[known]:
            raise Broken("no leader can be elected any more")

    def _turns(self) -> Iterator[Sequence[int]]:
        ids = self._steps.ids
        yield from ((id,) for id in ids)
        yield ids

    def _elects(self, begin: ExploredState, turns: Sequence[int]) -> bool:
        steps = self._steps
        voters = tuple(steps.parts.number(self._explored.node(number)) for number in begin.voters)
        calls = tuple(steps.parts.number(self._explored.call(number)) for number in begin.calls)
        world = ExploredState(0, voters, calls, (), steps.parts.number(Promises()), self._rest)
        for id in steps.ids:
            if steps.parts.node(world.voters[id - 1]).core is None:
                world = self._after(world, "boot", id)
        for turn in range(ROUNDS):
            for _ in range(MESSAGES_OF_A_ROUND):
                if self._has_committed(world):
                    return True
                if not world.calls:
                    break
                call = steps.parts.call(world.calls[0])
                world = self._after(world, "rpc" if call.reply is None else "reply", call.lane)
            world = self._rings(world, turns[turn % len(turns)])
        return self._has_committed(world)

    def _after(self, world: ExploredState, kind: str, place: object) -> ExploredState:
        after = self._steps.look(world, (kind, place)).carried_out()  # type: ignore[arg-type]
        assert after is not None, "the last epoch is far away"
        return after

    def _rings(self, world: ExploredState, id: int) -> ExploredState:
        for step in self._steps.steps(world):
            if step in (("timeout", id), ("look", id)):
                return self._after(world, step[0], id)
        return world

    def _has_committed(self, world: ExploredState) -> bool:
        for number in world.voters:
            node = self._steps.parts.node(number)
            state = node.core._voter.state if node.core is not None else None
            if isinstance(state, Leader) and node.mark > state.epoch_start_offset:
                return True
        return False


def _leads(node: ExploredVoter) -> bool:
    return node.core is not None and isinstance(node.core._voter.state, Leader)


def _names_others(node: ExploredVoter) -> bool:
    return sum(isinstance(batch.body, VoterSet) for batch in node.log.batches) > 1
