"""A state of the explored world: voters, what is on its way, what is left to happen, and what was ever promised.

States share everything that a step does not touch, so that a step copies one or two voters and a few small tuples.

Two states that differ only by the names of the voters have the same future.  The key of a state is the least hash over
all ways to name them (symmetry reduction: Ip and Dill, 1996).  What belongs to one voter or one message is hashed once
per naming and kept.  A key has 64 bits: among a million states two share one with a chance of 3 in 10^8, and one of
them would be left out.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.messages import (
    BEGINNING,
    Batch,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochEnd,
    EpochResponse,
    FetchRequest,
    FetchResponse,
    LeaderChange,
    QuorumState,
    RaftRequest,
    RaftResponse,
    SnapshotId,
    VoteRequest,
    VoteResponse,
)
from system_under_test.kraft.raft.states import Candidate, Follower, Leader, Prospective, Resigned, State, Votes
from system_under_test.kraft.raft.validity import EpochAllowance

Naming = Mapping[int | None, int | None]
Lane = tuple[int, int, str]
"""(who asks, who answers, the kind of request): one request of a kind is on its way at a time."""


def namings(voters: int) -> list[Naming]:
    """Every way to name the voters 1 .. n."""
    ids = range(1, voters + 1)
    return [{None: None, **dict(zip(ids, names, strict=True))} for names in permutations(ids)]


class ShortLog:
    """A log of a few batches; a `LogView`.  durable: how many batches a power loss leaves.  Copied before a change.

    It is never cut, and has no snapshots."""

    __slots__ = ("batches", "durable")
    start = BEGINNING

    def __init__(self, batches: tuple[Batch, ...] = (), durable: int = 0) -> None:
        self.batches = batches
        self.durable = durable

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    @property
    def last_epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else 0

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        for batch in reversed(self.batches):
            if batch.epoch <= epoch:
                return EpochEnd(batch.epoch, batch.end_offset)
        return EpochEnd(0, 0)

    def read(self, offset: int, max_size_bytes: int) -> Sequence[Batch]:
        first = bisect_right(self.batches, offset, key=lambda batch: batch.end_offset)
        return self.batches[first:] if max_size_bytes > 1 else self.batches[first : first + 1]

    @property
    def snapshot(self) -> SnapshotId | None:
        return None

    def read_snapshot(self, snapshot: SnapshotId, position: int, max_size_bytes: int) -> tuple[bytes, int] | None:
        return None

    def upto(self, end_offset: int) -> tuple[Batch, ...] | None:
        """The batches below an offset; None if no batch ends there."""
        if end_offset == 0:
            return ()
        for number, batch in enumerate(self.batches, 1):
            if batch.end_offset == end_offset:
                return self.batches[:number]
        return None


@dataclass(slots=True)
class Node:
    """core: None while it is down.  mark: the largest it has published in this life.  hashes: one for each naming."""

    id: int
    log: ShortLog
    file: QuorumState
    core: Core | None
    mark: int = 0
    hashes: list[int] | None = None

    def copy(self) -> Node:
        """What a step may change is copied, all else is shared."""
        log = ShortLog(self.log.batches, self.log.durable)
        core = None if self.core is None else _copied(self.core, log)
        return Node(self.id, log, self.file, core, self.mark)


def _copied(core: Core, log: ShortLog) -> Core:
    twin = copy.copy(core)
    voter = twin._voter = copy.copy(core._voter)
    voter.log = log
    voter.state = _copied_state(voter.state)
    voter.named_leaders = dict(voter.named_leaders)
    voter.in_flight = set(voter.in_flight)
    voter.retry_at = {}
    voter.epochs_by_request = EpochAllowance(0.0)
    voter.effects = []
    return twin


def _copied_state(state: State) -> State:
    twin = copy.copy(state)
    if isinstance(twin, (Prospective, Candidate)):
        twin.votes = Votes(set(twin.votes.granted), set(twin.votes.refused))
    elif isinstance(twin, Resigned):
        twin.untold = set(twin.untold)
    elif isinstance(twin, Leader):
        twin.followers = {peer: copy.copy(progress) for peer, progress in twin.followers.items()}
        twin.heard, twin.parked = set(twin.heard), list(twin.parked)
        reads = twin.reads = copy.copy(twin.reads)
        reads._early, reads._noted = list(reads._early), copy.copy(reads._noted)
        reads._answered, reads._confirmed = dict(reads._answered), dict(reads._confirmed)
    return twin


@dataclass(slots=True, eq=False)
class Call:
    """A request on its way, or its answer.  Never changed.  connection: of the lane, new after each loss."""

    lane: Lane
    request: RaftRequest
    connection: int
    reply: RaftResponse | None = None
    hashes: list[int] | None = None


LEFT = ("timeouts", "crashes", "losses", "cuts", "splits", "writes", "reads", "resigns")


@dataclass(slots=True)
class World:
    """left: of each of LEFT.  late: requests whose sender has given up.  cut: the voter that is alone; 0: none.

    leaders, votes, committed, owed, reads: what was promised.  committed: the batches of the largest mark."""

    nodes: tuple[Node, ...]
    left: tuple[int, ...]
    calls: dict[Lane, Call] = field(default_factory=dict)
    late: tuple[Call, ...] = ()
    cut: int = 0
    generation: int = 0
    leaders: dict[int, int] = field(default_factory=dict)
    votes: dict[tuple[int, int], int] = field(default_factory=dict)
    committed: tuple[Batch, ...] = ()
    reads: dict[int, int] = field(default_factory=dict)

    def copy(self) -> World:
        return World(
            self.nodes,
            self.left,
            dict(self.calls),
            self.late,
            self.cut,
            self.generation,
            dict(self.leaders),
            dict(self.votes),
            self.committed,
            dict(self.reads),
        )

    def node(self, id: int) -> Node:
        return self.nodes[id - 1]

    def touch(self, id: int) -> Node:
        """A copy of this voter, which takes its place."""
        node = self.nodes[id - 1].copy()
        self.nodes = (*self.nodes[: id - 1], node, *self.nodes[id:])
        return node

    def has(self, what: str) -> int:
        return self.left[LEFT.index(what)]

    def use(self, what: str) -> None:
        at = LEFT.index(what)
        self.left = (*self.left[:at], self.left[at] - 1, *self.left[at + 1 :])


def key(world: World, names: Sequence[Naming]) -> int:
    """The same for all worlds that differ only by the names of their voters."""
    for node in world.nodes:
        if node.hashes is None:
            node.hashes = [hash(_node(node, name)) for name in names]
    calls = [*world.calls.values(), *world.late]
    for call in calls:
        if call.hashes is None:
            call.hashes = [hash(_call(call, name)) for name in names]
    waiting = len(world.calls)
    found = []
    for number, name in enumerate(names):
        placed = sorted((name[node.id] or 0, (node.hashes or ())[number]) for node in world.nodes)
        promised = (
            tuple(sorted((epoch, name[leader]) for epoch, leader in world.leaders.items())),
            tuple(sorted((name[voter], epoch, name[chosen]) for (voter, epoch), chosen in world.votes.items())),
            _batches(world.committed, name),
            tuple(sorted(world.reads.items())),
        )
        ways = [(call.hashes or ())[number] for call in calls]
        found.append(
            hash(
                (
                    tuple(placed),
                    tuple(sorted(ways[:waiting])),
                    tuple(sorted(ways[waiting:])),
                    name[world.cut or None],
                    world.left,
                    promised,
                )
            )
        )
    return min(found)


def _node(node: Node, name: Naming) -> tuple[Any, ...]:
    file = node.file
    stored = (file.epoch, name[file.leader_id], name[file.voted.id if file.voted is not None else None])
    log = (_batches(node.log.batches, name), node.log.durable)
    if node.core is None:
        return ("down", stored, log)
    voter = node.core._voter
    named = tuple(sorted((name[leader], epoch) for leader, epoch in voter.named_leaders.items()))
    asked = tuple(sorted((name[peer] or 0, kind.__name__) for peer, kind in voter.in_flight))
    return (_state(voter.state, name), stored, log, voter.high_watermark, node.mark, named, asked, node.core.halted)


def _state(state: State, name: Naming) -> tuple[Any, ...]:
    who = (state.role.value, state.epoch)
    match state:
        case Follower():
            return (*who, name[state.leader_id], state.has_fetched)
        case Prospective():
            return (*who, _set(state.votes.granted, name), _set(state.votes.refused, name), name[state.leader_id])
        case Candidate():
            return (*who, _set(state.votes.granted, name), _set(state.votes.refused, name))
        case Resigned():
            return (*who, _set(state.untold, name), tuple(name[each.id] for each in state.preferred))
        case Leader():
            reads = state.reads
            followers = sorted((name[p], f.end_offset, f.begin_due <= 0) for p, f in state.followers.items())
            confirmed = sorted((name[peer], stamp) for peer, stamp in reads._confirmed.items())
            answered = sorted(
                (connection // 100, name[connection // 10 % 10], name[connection % 10], stamp)
                for connection, stamp in reads._answered.items()
            )
            waiting = (tuple(reads._noted), tuple(reads._early), reads._clock)
            return (*who, state.epoch_start_offset, tuple(followers), tuple(confirmed), tuple(answered), waiting)
    return who


def _set(ids: set[int], name: Naming) -> tuple[Any, ...]:
    return tuple(sorted(name[each] or 0 for each in ids))


def _batches(batches: Sequence[Batch], name: Naming) -> tuple[Any, ...]:
    return tuple(
        (batch.epoch, name[batch.body.leader_id] if isinstance(batch.body, LeaderChange) else batch.body, batch.count)
        for batch in batches
    )


def _call(call: Call, name: Naming) -> tuple[Any, ...]:
    client, server, kind = call.lane
    generation = call.connection // 100
    return (name[client], name[server], kind, generation, _message(call.request, name), _message(call.reply, name))


def _message(message: RaftRequest | RaftResponse | None, name: Naming) -> tuple[Any, ...]:
    match message:
        case VoteRequest():
            return (
                message.epoch,
                message.last_epoch,
                message.last_offset,
                message.pre_vote,
                name[message.candidate.id],
            )
        case BeginQuorumEpochRequest():
            return (name[message.leader_id], message.epoch)
        case EndQuorumEpochRequest():
            preferred = tuple(name[each.id] for each in message.preferred_candidates)
            return (name[message.leader_id], message.epoch, preferred)
        case FetchRequest():
            where = (message.fetch_offset, message.last_fetched_epoch, message.high_watermark)
            return (name[message.replica.id], message.current_leader_epoch, *where)
        case VoteResponse():
            known = (name[message.leader_id], message.leader_epoch)
            return (int(message.error), *known, message.granted, message.pre_vote)
        case EpochResponse():
            return (int(message.error), name[message.leader_id], message.leader_epoch)
        case FetchResponse():
            parts = (message.high_watermark, message.diverging, _batches(message.batches, name))
            return (int(message.error), name[message.leader_id], message.leader_epoch, *parts)
    return ()
