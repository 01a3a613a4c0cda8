"""Elections that are still possible: no order of steps may leave voters that wait for one another for ever.

A state is looked at in which no server leads, and a log names other voters than the cluster began with.  All servers
are started again, all links are whole, and from then on everything arrives.  Servers wait no longer for a leader, one
of them again and again, or all in turn.  If a leader commits something of its own epoch in one of these futures, then a
leader can be elected.

A future that comes to a state of another one that elected a leader ends there.

That takes timers that ring in a good order, as those of a real cluster do sooner or later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.exploring.parts import Broken, Parts, Promises, Rest
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
        self._electing: set[ExploredState] = set()
        """States of futures in which a leader was elected later."""

    def check(self, voters: Sequence[int], calls: Sequence[int]) -> None:
        """Raises Broken if no leader can be elected from this state."""
        nodes = [self._explored.node(number) for number in voters]
        if any(map(_leads, nodes)) or not any(map(_names_others, nodes)):
            return
        known = (tuple(voters), frozenset(calls))
        if known not in self._known:
            self._known[known] = any(self._elects(voters, calls, turns) for turns in self._turns())
        if not self._known[known]:
            raise Broken("no leader can be elected any more")

    def _turns(self) -> Iterator[Sequence[int]]:
        ids = self._steps.ids
        yield from ((id,) for id in ids)
        yield ids

    def _elects(self, voters: Sequence[int], calls: Sequence[int], turns: Sequence[int]) -> bool:
        steps, parts = self._steps, self._steps.parts
        world = ExploredState(
            tuple(parts.number(self._explored.node(number)) for number in voters),
            tuple(parts.number(self._explored.call(number)) for number in calls),
            (),
            parts.number(Promises()),
            self._rest,
        )
        for id in steps.ids:
            if parts.node(world.voters[id - 1]).core is None:
                world = steps.at_once(world, ("boot", id))
        met = list[ExploredState]()
        for state in self._future(world, turns):
            if state in self._electing or any(map(self._has_committed, state.voters)):
                self._electing.update(met)
                return True
            met.append(state)
        return False

    def _future(self, world: ExploredState, turns: Sequence[int]) -> Iterator[ExploredState]:
        """Yield each state after a message; the rest of a round is skipped if no message is left."""
        steps, parts = self._steps, self._steps.parts
        for turn in range(ROUNDS):
            for _ in range(MESSAGES_OF_A_ROUND):
                yield world
                if not world.calls:
                    break
                call = parts.call(world.calls[0])
                world = steps.at_once(world, ("rpc" if call.reply is None else "reply", call.lane))
            world = self._rings(world, turns[turn % len(turns)])
        yield world

    def _rings(self, world: ExploredState, id: int) -> ExploredState:
        for step in self._steps.steps_of_voter(world, id):
            if step[0] in ("timeout", "look"):
                return self._steps.at_once(world, step)
        return world

    def _has_committed(self, number: int) -> bool:
        node = self._steps.parts.node(number)
        state = node.core.memory.state if node.core is not None else None
        return isinstance(state, Leader) and node.mark > state.epoch_start_offset


def _leads(node: ExploredVoter) -> bool:
    return node.core is not None and isinstance(node.core.memory.state, Leader)


def _names_others(node: ExploredVoter) -> bool:
    return sum(isinstance(batch.body, VoterSet) for batch in node.log.batches) > 1
