"""A small world in memory: voters with disks, connections between them, clients, and virtual time.

By itself the world is kind: messages take a few milliseconds and nothing breaks.  A script (tests/scenarios) cuts links
and crashes voters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from harness.campaign.swarm.watch import Watch, WatchedRow
from simulated_quorum.disk import Disk
from simulated_quorum.network import Network, Node
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.decisions import durable_state, must_fsync
from system_under_test.kraft.raft.effects import (
    Append,
    BeginFlush,
    CoreEffect,
    Fatal,
    Flush,
    HighWatermark,
    Persist,
    ReadReady,
    Reply,
    RoleChanged,
    Send,
    Truncate,
)
from system_under_test.kraft.raft.messages import Identity, QuorumState, ReplicaKey

CLUSTER_ID = "scripted"
FSYNC_S = 0.001
"""How long an fsync takes that goes on beside the core."""


class World(Network):
    """See Network for seed."""

    def __init__(
        self, voters: int = 3, *, seed: int = 0, bugs: Iterable[str] = (), batches_per_read: int = 1000
    ) -> None:
        ids = tuple(range(1, voters + 1))
        nodes = {id: Node(id, Disk(batches_per_read)) for id in ids}
        super().__init__(nodes, Watch(lambda: self.now, lambda moment, voter: None, lambda line: None), seed)
        self.watch.voters = list(nodes.values())  # type: ignore[arg-type]
        self.bugs = frozenset(bugs)
        self._owed: dict[int, int] = {}  # token of a read -> what was committed when it arrived
        for id in ids:
            self.restart(id)

    # Seeing

    def core(self, id: int) -> Core:
        core = self.nodes[id].core
        assert core is not None, f"voter {id} is down"
        return core

    def elect(self, limit_s: float) -> None:
        """Wait until all that run follow one leader, which has committed its LeaderChange."""

        def settled() -> bool:
            running = {id: node.core for id, node in self.nodes.items() if node.core is not None}
            followed = {core.leader_id for core in running.values()}
            leads = len(followed) == 1 and followed <= {id for id, core in running.items() if core.role == "leader"}
            return leads and all(core.high_watermark is not None for core in running.values())

        assert self.wait_for(settled, limit_s), f"no leader within {limit_s} s"

    # Clients

    def propose(self, id: int, *bodies: str) -> None:
        token = self._number()
        self._enter(self.nodes[id], lambda core: core.propose(self.now, token, [(body, 1) for body in bodies]))

    def read(self, id: int) -> None:
        token = self._number()
        self._owed[token] = self.watch.committed
        self._enter(self.nodes[id], lambda core: core.read(self.now, token))

    # Faults

    def cut(self, *groups: Iterable[int]) -> None:
        """Only members of one group hear each other; who is named in no group is alone."""
        place = {id: index for index, group in enumerate(groups) for id in group}
        self.blocked = {
            (a, b) for a in self.nodes for b in self.nodes if a != b and place.get(a, -a) != place.get(b, -b)
        }

    def heal(self) -> None:
        self.blocked = set()

    def crash(self, id: int, *, power_loss: bool = False) -> None:
        node = self.nodes[id]
        node.core = None
        node.incarnation += 1
        if power_loss:
            node.disk.lose_power(self.random)
        else:
            self.hang_up(id)

    def restart(self, id: int) -> None:
        node = self.nodes[id]
        if node.core is not None or node.died_of is not None:
            return
        identity = Identity(CLUSTER_ID, ReplicaKey(id), tuple(self.nodes), self.timing, self.bugs)
        random = Random(self.random.getrandbits(32))
        node.core = Core(identity, node.disk, node.disk.quorum_state, random, self.now)
        self._row(node, "start", offset=node.disk.end_offset, hash=node.disk.prefix(node.disk.end_offset))
        self._vote_row(node, "quorum-state", node.disk.quorum_state)
        self._enter(node, lambda core: core.start(self.now))

    def shut_down(self, id: int) -> None:
        self._enter(self.nodes[id], lambda core: core.shutdown(self.now))

    # Voters: inputs to the core, and its effects

    def _enter(self, node: Node, call: Callable[[Core], list[CoreEffect]], incarnation: int | None = None) -> None:
        if node.core is None or incarnation not in (None, node.incarnation):
            return
        try:
            effects = call(node.core)
        except Exception as error:  # noqa: BLE001  every exception is a finding
            self._die(node, f"{type(error).__name__}: {error}")
            self._row(node, "fatal", detail=node.died_of)
            return
        for effect in effects:
            self._carry_out(node, effect)
            if node.core is None:
                return
        self._plan_tick(node)

    def _plan_tick(self, node: Node) -> None:
        assert node.core is not None
        incarnation = node.incarnation

        def tick() -> None:
            if node.core is not None and incarnation == node.incarnation and node.core.deadline <= self.now:
                self._enter(node, lambda core: core.tick(self.now))

        self.at(node.core.deadline, tick)

    def _row(self, node: Node, event: str, epoch: int | None = None, **columns: Any) -> None:
        """Report what is so now, as a row of the voter's trace does."""
        known = node.disk.quorum_state.epoch if epoch is None else epoch
        self.watch.row(node, WatchedRow(event, known, **columns))  # type: ignore[arg-type]

    def _vote_row(self, node: Node, event: str, state: QuorumState) -> None:
        self._row(node, event, state.epoch, peer=None if state.voted is None else f"n{state.voted.id}")

    def _carry_out(self, node: Node, effect: CoreEffect) -> None:
        disk = node.disk
        match effect:
            case Persist(state=state, voted_now=voted_now):
                disk.quorum_state = stored = durable_state(state, self.bugs)
                self._vote_row(node, "vote" if voted_now else "quorum-state", state if voted_now else stored)
            case Append(batches=batches):
                disk.append(batches)
                self._row(node, "append", disk.last_epoch, offset=disk.end_offset)
            case BeginFlush():
                self._begin_flush(node)
            case Flush():
                if must_fsync(self.bugs):
                    disk.flush()
                self._row(node, "flush", offset=disk.end_offset)
            case Truncate(end_offset=end_offset):
                disk.truncate(end_offset)
                self._row(node, "truncate", offset=end_offset)
            case Send(peer=peer, request=request):
                self._send(node, peer, request)
            case Reply(token=token, response=response):
                self._post(node.id, self._calls[token].client, partial(self._finish, token, response))
            case RoleChanged(role=role, epoch=epoch, leader_id=leader, epoch_start_offset=start):
                name = None if leader is None else f"n{leader}"
                self._row(node, "role", epoch, offset=start, peer=name, role=str(role))
            case HighWatermark(offset=mark):
                self._row(node, "high-watermark", offset=mark, hash=disk.prefix(mark))
            case ReadReady(token=token, high_watermark=mark):
                self.watch.answered_read(node, mark, self._owed.pop(token))  # type: ignore[arg-type]
            case Fatal(reason=reason):
                self._row(node, "fatal", detail=reason)
                self._die(node, reason)

    def _begin_flush(self, node: Node) -> None:
        incarnation, log_end, end = node.incarnation, node.disk.end_offset, node.disk.begin_flush()

        def done() -> None:
            if node.incarnation == incarnation and must_fsync(self.bugs):
                end()
            self._enter(node, lambda core: self._flushed(node, core, log_end), incarnation)

        self.at(self.now + FSYNC_S, done)

    def _flushed(self, node: Node, core: Core, log_end: int) -> list[CoreEffect]:
        self._row(node, "flush", offset=log_end)
        return core.on_flushed(self.now, log_end)

    def _die(self, node: Node, reason: str) -> None:
        node.died_of = reason
        self.crash(node.id)
