"""One voter of the explored cluster, and the effect of one event on it.

A voter in a given state and an event have one outcome.  The core computes the outcome once; later it is looked up.  So
a known voter never changes: an event is applied to a copy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import chain, combinations
from operator import attrgetter
from random import Random
from typing import Any, NamedTuple

from checkers.raft.rules import EARLY_CHANGE, FAR_SETS, MARK_BACK, TWO_CHANGES
from system_under_test.kraft.raft import effects as fx
from system_under_test.kraft.raft import messages
from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, UpdateVoter, VoterChange
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.decisions import durable_state, must_fsync
from system_under_test.kraft.raft.states import Follower, Leader
from system_under_test.kraft.raft.valid_messages import EpochAllowance
from system_under_test.kraft.raft.voters import (
    VoterEndpoint,
    VoterEntry,
    VoterHistory,
    VoterSet,
    configured,
)

_EPOCH, _END = attrgetter("epoch"), attrgetter("end_offset")
FOREVER_S = 9.0
BATCHES_OF_A_READ = 100
CONNECTIONS = 100
"""The number of a connection is CONNECTIONS * number of reconnections of its client + 10 * client + server."""


class BatchLog:
    """A log of batches in memory; a `LogView`.  Its beginning is never deleted, and it has no snapshots."""

    __slots__ = ("batches",)
    start = messages.BEGINNING
    snapshot: messages.SnapshotId | None = None

    def __init__(self, batches: Sequence[messages.Batch]) -> None:
        self.batches = batches

    @property
    def end_offset(self) -> int:
        return self.batches[-1].end_offset if self.batches else 0

    @property
    def last_epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else 0

    def end_offset_for_epoch(self, epoch: int) -> messages.EpochEnd:
        at = bisect_right(self.batches, epoch, key=_EPOCH) - 1
        last = self.batches[at] if at >= 0 else self.start
        return messages.EpochEnd(last.epoch, last.end_offset)

    def read(self, offset: int, max_size_bytes: int) -> Sequence[messages.Batch]:
        first = self.count_below(offset)
        return self.batches[first : first + (BATCHES_OF_A_READ if max_size_bytes > 1 else 1)]

    def read_snapshot(
        self, snapshot: messages.SnapshotId, position: int, max_size_bytes: int
    ) -> tuple[bytes, int] | None:
        return None

    def count_below(self, end_offset: int) -> int:
        """Return the number of batches that end at or below an offset."""
        return bisect_right(self.batches, end_offset, key=_END)


class ShortLog(BatchLog):
    """A log that is copied before a change. durable: number of batches that survive a power loss."""

    __slots__ = ("durable",)
    batches: tuple[messages.Batch, ...]

    def __init__(self, batches: tuple[messages.Batch, ...] = (), durable: int = 0) -> None:
        super().__init__(batches)
        self.durable = durable

    def upto(self, end_offset: int) -> tuple[messages.Batch, ...] | None:
        """Return the batches before an offset; None if no batch ends there."""
        kept = self.batches[: self.count_below(end_offset)]
        return kept if end_offset == (kept[-1].end_offset if kept else 0) else None


class VotersInBatches:
    """`VoterRecords` of a log of batches. first: the voters in force while the log contains no voters."""

    def __init__(self, log: BatchLog, first: VoterSet) -> None:
        self.log = log
        self.first = first

    def load(self) -> VoterHistory:
        history = VoterHistory(self.first)
        for batch in self.log.batches:
            if (named := self.read(batch)) is not None:
                history.append(batch.base_offset, named)
        return history

    def read(self, batch: messages.Batch) -> VoterSet | None:
        return batch.body if isinstance(batch.body, VoterSet) else None


class ExploredVoter:
    """A voter in one state.

    core: None while the voter is down
    mark: largest high watermark that the voter has published in this incarnation
    connections: number of times that the voter, as a client, has reconnected to other voters
    """

    __slots__ = ("connections", "core", "file", "id", "log", "mark")

    def __init__(
        self, id: int, log: ShortLog, file: messages.QuorumState, core: Core | None, mark: int = 0, connections: int = 0
    ) -> None:
        self.id = id
        self.log = log
        self.file = file
        self.core = core
        self.mark = mark
        self.connections = connections

    def copy(self) -> ExploredVoter:
        """Copy everything that an event may change; share all other objects."""
        log = ShortLog(self.log.batches, self.log.durable)
        core = None
        if self.core is not None:
            records = self.core.records
            core = self.core.copy(
                log, VotersInBatches(log, records.first) if isinstance(records, VotersInBatches) else None
            )
        return ExploredVoter(self.id, log, self.file, core, self.mark, self.connections)

    def connection_to(self, server: int) -> int:
        return self.connections * CONNECTIONS + self.id * 10 + server


# Effects of an event on a voter


class Sent(NamedTuple):
    peer: int
    request: messages.RaftRequest
    connection: int


class Replied(NamedTuple):
    response: messages.RaftResponse


class Voted(NamedTuple):
    epoch: int
    voted: int | None


class Leads(NamedTuple):
    epoch: int
    log: tuple[messages.Batch, ...]


class Marked(NamedTuple):
    """A high watermark, with the batches below it.

    leads: True if a leader computed it
    voters: the latest voters in the log; empty if the log contains none, so the configured voters are in force
    """

    prefix: tuple[messages.Batch, ...]
    leads: bool
    voters: tuple[int, ...] = ()


class Cut(NamedTuple):
    """A log was truncated."""

    kept: tuple[messages.Batch, ...]
    before: tuple[messages.Batch, ...]


class Read(NamedTuple):
    """The end of a read. mark: it was answered from the state below this mark; None if rejected or never answered."""

    token: int
    mark: int | None


class Wrong(NamedTuple):
    """A rule that one voter violates by itself."""

    rule: str


Act = Sent | Replied | Voted | Leads | Marked | Cut | Read | Wrong
"""Effects of an event that are visible to other voters or to the rules."""


class DeathInEvent(NamedTuple):
    """A power loss during an event. acts: effects before it; down: the voter after it."""

    acts: tuple[Act, ...]
    down: ExploredVoter


class EventOutcome(NamedTuple):
    """Outcome of an event. deaths: one for each pair of effects between which a power loss makes a difference."""

    node: ExploredVoter
    acts: tuple[Act, ...]
    deaths: tuple[DeathInEvent, ...]


class _Middle(Random):
    """Random source without randomness, so every order gives the same values."""

    def random(self) -> float:
        return 0.0

    def __reduce__(self) -> Any:
        return _Middle, ()


CHANCE = _Middle()


class VoterEvent(NamedTuple):
    """An event of a voter.

    kind: boot, crash, timeout, look, resign, write, read, add, remove, update, ask, answer, or lost
    token: of a client's write or read, or of a change of voters
    peer: of add, remove and update: the voter that is changed
    connection, request: of an ask
    peer, request, response: of an answer; without a response no answer will come, and after `lost` the voter opens a
        new connection
    """

    kind: str
    token: int = 0
    connection: int = 0
    peer: int = 0
    request: messages.RaftRequest | None = None
    response: messages.RaftResponse | None = None


def happen(
    before: ExploredVoter, event: VoterEvent, identity: messages.Identity, *, insides: bool = True
) -> EventOutcome:
    """Return the outcome of an event on a voter; `before` itself does not change.

    insides: True to include the outcomes of a power loss during the event

    An exception of the core is a violation.
    """
    node = before.copy()
    held = _waiting_reads(before)
    if event.kind == "crash":
        return EventOutcome(down(node), tuple(Read(token, None) for token in held), ())
    reads = (*held, event.token) if event.kind == "read" else held
    leads = before.core is not None and before.core.role == "leader"
    carried = _Carried(node, identity.bugs, reads, leads=leads, dies=insides)
    try:
        effects = _effects(node, event, identity)
        while effects:
            # A flush that begins here ends before the next step, unless a power loss comes first.
            flushes = any(isinstance(effect, fx.BeginFlush) for effect in effects)
            for number, effect in enumerate(effects, 1):
                carried.out(effect, last=number == len(effects) and not flushes)
            effects = carried.end_flush() if flushes else []
    except Exception as problem:  # noqa: BLE001 - a node would end by it
        carried.acts.append(Wrong(f"a voter stops: voter {node.id}: unexpected error: {problem!r}"))
        return EventOutcome(down(node), tuple(carried.acts), ())
    if node.core is not None:
        stop_time(node.core)
        carried.compare_voters(before, of_boot=event.kind == "boot")
    return EventOutcome(node, tuple(carried.acts), tuple(carried.deaths))


def down(node: ExploredVoter) -> ExploredVoter:
    """Return the voter after a power loss, without unflushed data."""
    kept = node.log.batches[: node.log.durable]
    return ExploredVoter(node.id, ShortLog(kept, len(kept)), node.file, None, 0, node.connections + 1)


def _waiting_reads(node: ExploredVoter) -> tuple[int, ...]:
    if node.core is None or not isinstance(node.core.state, Leader):
        return ()
    return tuple(node.core.state.reads.unanswered())


def _effects(node: ExploredVoter, event: VoterEvent, identity: messages.Identity) -> list[fx.CoreEffect]:
    if event.kind == "boot":
        records = VotersInBatches(node.log, configured(identity)) if identity.dynamic else None
        node.core = Core(identity, node.log, node.file, CHANCE, 0.0, records)
        node.mark = 0
        return node.core.start(0.0)
    core = node.core
    assert core is not None
    match event:
        case VoterEvent("write", token=token):
            return core.propose(0.0, token, [(f"w{token}", 1)])
        case VoterEvent("read", token=token):
            return core.read(0.0, token)
        case VoterEvent("add" | "remove" | "update", token=token, peer=peer):
            return core.change_voters(0.0, token, _change(event.kind, token, messages.ReplicaKey(peer)))
        case VoterEvent("ask", connection=connection, request=request) if request is not None:
            return core.on_request(0.0, 1, connection, request)
        case VoterEvent("answer" | "lost", peer=peer, request=request, response=response) if request is not None:
            node.connections += event.kind == "lost"
            return core.on_response(0.0, peer, request, response)
    return _wait_no_longer(core)


def _change(kind: str, token: int, key: messages.ReplicaKey) -> VoterChange:
    match kind:
        case "add":
            return AddVoter(VoterEntry(key))
        case "remove":
            return RemoveVoter(key)
    return UpdateVoter(VoterEntry(key, (VoterEndpoint("CONTROLLER", f"n{key.id}", token),)))


def _wait_no_longer(core: Core) -> list[fx.CoreEffect]:
    """Let the voter's timer fire."""
    state = core.state
    if isinstance(state, Leader):
        state.quorum_deadline, state.heard = 0.0, set()
    elif isinstance(state, Follower):
        state.fetch_deadline = 0.0
    else:
        state.election_deadline = 0.0
    return core.tick(0.0)


class _Carried:
    """Applies effects to one voter, one after another."""

    def __init__(
        self, node: ExploredVoter, bugs: frozenset[str], reads: Sequence[int], *, leads: bool, dies: bool
    ) -> None:
        self._may_die = dies
        self.acts: list[Act] = []
        self.deaths: list[DeathInEvent] = []
        self._node = node
        self._bugs = bugs
        self._reads = reads
        self._run_of_sends: list[Act] = []
        self._reported: VoterSet | None = None
        self._leads = leads

    def out(self, effect: fx.CoreEffect, *, last: bool) -> None:
        if not self._may_die:
            self._carry(effect)
            return
        before = (len(self.acts), self._node.file, self._node.log.batches, self._node.log.durable)
        self._carry(effect)
        after = (len(self.acts), self._node.file, self._node.log.batches, self._node.log.durable)
        if before == after:
            return
        if not isinstance(effect, fx.Send):
            self._run_of_sends = []
            self._dies(self.acts, last)
            return
        # The core sends requests in the order of the voters' names.  Any other order is possible, so a power loss may
        # come after any subset of the requests before this one.
        sent, first = self.acts[-1], len(self.acts) - 1 - len(self._run_of_sends)
        run = self._run_of_sends
        for others in chain.from_iterable(combinations(run, size) for size in range(len(run) + 1)):
            self._dies([*self.acts[:first], *others, sent], last and len(others) == len(run))
        run.append(sent)

    def end_flush(self) -> list[fx.CoreEffect]:
        """End the flush in progress; return the core's effects."""
        node = self._node
        assert node.core is not None
        if must_fsync(self._bugs):
            node.log.durable = len(node.log.batches)
        effects = node.core.on_flushed(0.0, node.log.end_offset)
        self._run_of_sends = []
        self._dies(self.acts, last=not effects)
        return effects

    def _dies(self, acts: Sequence[Act], last: bool) -> None:
        if self._may_die and not last:
            answered = {act.token for act in acts if isinstance(act, Read)}
            lost = (Read(token, None) for token in self._reads if token not in answered)
            self.deaths.append(DeathInEvent((*acts, *lost), down(self._node)))

    def _carry(self, effect: fx.CoreEffect) -> None:
        node, log = self._node, self._node.log
        match effect:
            case fx.Persist(state=state):
                self.acts.append(Voted(state.epoch, None if state.voted is None else state.voted.id))
                node.file = durable_state(state, self._bugs)
            case fx.Append(batches=batches):
                for batch in batches:
                    self._names_voters(batch)
                log.batches = (*log.batches, *batches)
            case fx.Flush():
                if must_fsync(self._bugs):
                    log.durable = len(log.batches)
            case fx.Truncate(end_offset=end):
                kept = log.upto(end) or ()
                self.acts.append(Cut(kept, log.batches))
                log.batches, log.durable = kept, min(log.durable, len(kept))
            case fx.Send(peer=peer, request=request):
                self.acts.append(Sent(peer, request, node.connection_to(peer)))
            case fx.Reply(response=response):
                self.acts.append(Replied(response))
            case fx.RoleChanged(role=role, epoch=epoch):
                self._leads = role == "leader"
                if self._leads:
                    self.acts.append(Leads(epoch, log.batches))
            case fx.HighWatermark(offset=offset):
                self._mark(offset)
            case fx.ReadReady(token=token, high_watermark=mark):
                self.acts.append(Read(token, mark))
            case fx.NotAccepted(token=token):
                self.acts.append(Read(token, None))
            case fx.Fatal(reason=reason):
                self.acts.append(Wrong(f"a voter stops: voter {node.id}: {reason}"))
            case fx.VotersChanged(voters=voters):
                self._reported = voters
            case fx.BeginFlush() | fx.Accepted() | fx.VotersChangeDone():
                pass
            case _:
                raise NotImplementedError(f"no exploration knows the effect {effect}")

    def _names_voters(self, batch: messages.Batch) -> None:
        """Verify that a leader changes one voter at a time, and not before an entry of its epoch is committed."""
        node, named = self._node, batch.body
        office = None if node.core is None else node.core.state
        before = latest_voters(node.log)
        if not isinstance(named, VoterSet) or not isinstance(office, Leader) or before is None:
            return
        where = f"voter {node.id} in epoch {office.epoch} at offset {batch.base_offset}"
        if node.mark <= office.epoch_start_offset:
            self.acts.append(Wrong(f"{EARLY_CHANGE}: {where}"))
        elif before[0] >= node.mark:
            self.acts.append(Wrong(f"{TWO_CHANGES}: {where}"))
        elif len(set(before[1].ids) ^ set(named.ids)) > 1:
            self.acts.append(Wrong(f"{FAR_SETS}: {where}"))

    def compare_voters(self, before: ExploredVoter, *, of_boot: bool) -> None:
        """Verify that the latest voters in the log are in force at once, even after other voters were truncated."""
        node = self._node
        then, now = latest_voters(before.log), latest_voters(node.log)
        assert node.core is not None
        if of_boot or then == now or node.core.halted:
            return
        in_force = now[1] if now is not None else configured(node.core.identity)
        if self._reported != in_force:
            self.acts.append(Wrong(f"voters outlive their record: voter {node.id}"))

    def _mark(self, offset: int) -> None:
        node = self._node
        prefix = node.log.upto(offset)
        if prefix is None:
            self.acts.append(Wrong(f"a mark where no entry ends: voter {node.id} at {offset}"))
        elif offset < node.mark:
            self.acts.append(Wrong(f"{MARK_BACK}: voter {node.id} from {node.mark} to {offset}"))
        else:
            node.mark = offset
            named = latest_voters(node.log)
            self.acts.append(Marked(prefix, self._leads, () if named is None else named[1].ids))


def latest_voters(log: ShortLog) -> tuple[int, VoterSet] | None:
    """Return (offset, voters) of the latest record of voters in a log; None if the log contains none, so the configured
    voters are in force.
    """
    named = ((batch.base_offset, batch.body) for batch in reversed(log.batches))
    return next(((offset, body) for offset, body in named if isinstance(body, VoterSet)), None)


def stop_time(core: Core) -> None:
    """Make the state independent of time: no timer that lies in the future ever fires by itself."""
    voter = core
    voter.retry_at.clear()
    voter.epochs_by_request = EpochAllowance(0.0)
    state = voter.state
    if isinstance(state, Leader):
        state.quorum_deadline, state.news_at = FOREVER_S, FOREVER_S
        state.heard = set()
        for progress in state.followers.values():
            progress.begin_due, progress.fetched_at = (FOREVER_S if progress.begin_due > 0 else 0.0), 0.0
            progress.leader_end_offset, progress.caught_up_at = -1, 0.0  # only voters that are being added use these
        for progress in state.observers.values():
            progress.fetched_at = 0.0
    elif isinstance(state, Follower):
        state.fetch_deadline = FOREVER_S
    else:
        state.election_deadline = FOREVER_S
