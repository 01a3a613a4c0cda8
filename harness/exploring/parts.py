"""Parts of an explored state, the key of a state, and the rules that hold after every event.

A state consists of numbers.  Each identifies a part: a voter, a message in flight, the promises so far, the remaining
budgets.  A part is immutable, and its number is a hash of its content, so it has the same number in every process.

Two states that differ only by the names of the voters have the same future (symmetry reduction: Ip and Dill, 1996).
So a state has one sum for each way to name the voters, and the key of the state is the minimum of these sums.  Each
part adds a hash of 64 bits to each sum, so the order of parts does not matter (`Levels.keys`).

Among a million states, two share a key with a probability of 3 in 10^8; then one of the two would be skipped.

*Rules.*  Rules must hold after every event of a voter.  Each event may also add promises, which stay in force.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from hashlib import blake2b
from itertools import permutations
from types import NoneType
from typing import Any, NamedTuple

from checkers.raft import rules
from harness.exploring.voter import CONNECTIONS, Act, Cut, ExploredVoter, Leads, Marked, Read, Voted, Wrong
from system_under_test.kraft.raft.messages import (
    Batch,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochResponse,
    FetchRequest,
    FetchResponse,
    LeaderChange,
    RaftRequest,
    RaftResponse,
    ReplicaKey,
    VoteRequest,
    VoteResponse,
)
from system_under_test.kraft.raft.states import Candidate, Follower, Leader, Prospective, Resigned, State
from system_under_test.kraft.raft.voter_memory import Voter
from system_under_test.kraft.raft.voters import KRaftVersion, VoterSet, majority


class Naming(dict[int | None, int | None]):
    """Other names of the voters. logs: batches -> these batches under the other names; there are few distinct logs."""

    def __init__(self, names: Mapping[int | None, int | None]) -> None:
        super().__init__(names)
        self.logs: dict[Sequence[Batch], tuple[Any, ...]] = {}


Lane = tuple[int, int, str]
"""(sender, receiver, kind of the request): at most one request of a kind is in flight."""


def namings(voters: int) -> list[Naming]:
    """Return every way to name the voters 1 .. n; the first one keeps their names."""
    ids = range(1, voters + 1)
    return [Naming({None: None, **dict(zip(ids, names, strict=True))}) for names in permutations(ids)]


class CallUnderWay(NamedTuple):
    """A request in flight, or its answer. late: True if the sender has given up."""

    lane: Lane
    request: RaftRequest
    connection: int
    reply: RaftResponse | None = None
    late: bool = False


class Promises(NamedTuple):
    """All promises so far, in ascending order.

    leaders: (epoch, leader)
    votes: (voter, epoch, candidate)
    committed: the batches below the largest mark
    reads: (token, minimum mark from which the read must be answered)
    """

    leaders: tuple[tuple[int, int], ...] = ()
    votes: tuple[tuple[int, int, int], ...] = ()
    committed: tuple[Batch, ...] = ()
    reads: tuple[tuple[int, int], ...] = ()


class Rest(NamedTuple):
    """Remaining budgets. left: number of steps of each kind. cut: the isolated voter; 0: none."""

    left: tuple[int, ...]
    cut: int = 0


Part = ExploredVoter | CallUnderWay | Promises | Rest


class Parts:
    """All known parts, by number."""

    def __init__(self, names: Sequence[Naming]) -> None:
        self.values: dict[int, Part] = {}
        self.sums: dict[int, tuple[int, ...]] = {}
        """Number of a part -> its hashes, one for each way to name the voters; the first hash is the number itself."""
        self.fresh: list[int] = []
        """Numbers of the parts that were added since `taken_out` was last called."""
        self._names = names
        self._numbers: dict[Part, int] = {}
        # Called in every step: returns the part with this number.  The caller knows the type of the part.
        self.node: Callable[[int], ExploredVoter] = self.values.__getitem__  # type: ignore[assignment]
        self.call: Callable[[int], CallUnderWay] = self.values.__getitem__  # type: ignore[assignment]
        self.promises: Callable[[int], Promises] = self.values.__getitem__  # type: ignore[assignment]
        self.rest: Callable[[int], Rest] = self.values.__getitem__  # type: ignore[assignment]

    def number(self, part: Part) -> int:
        """Return the number of a part; store the part if it is new."""
        if not isinstance(part, ExploredVoter) and (known := self._numbers.get(part)) is not None:
            return known
        number = _hash(_named(part, self._names[0]))
        if number not in self.values:
            self._take(number, part, (number, *(_hash(_named(part, name)) for name in self._names[1:])))
            self.fresh.append(number)
        return number

    def _take(self, number: int, part: Part, sums: tuple[int, ...]) -> None:
        self.values[number] = part
        self.sums[number] = sums
        if not isinstance(part, ExploredVoter):
            self._numbers[part] = number

    def taken_out(self) -> list[tuple[int, Part, tuple[int, ...]]]:
        """Return the parts added since the last call, to send them to another process."""
        found = [(number, self.values[number], self.sums[number]) for number in self.fresh]
        self.fresh = []
        return found

    def take_in(self, parts: Sequence[tuple[int, Part, tuple[int, ...]]]) -> None:
        for number, part, sums in parts:
            if number not in self.values:
                self._take(number, part, sums)


def _hash(named: tuple[Any, ...]) -> int:
    """Hash with version 2 of the format, which writes equal values as equal bytes even if references differ."""
    return int.from_bytes(blake2b(marshal.dumps(named, 2), digest_size=8).digest(), "little")


# The same values with renamed voters


def _named(part: Part, name: Naming) -> tuple[Any, ...]:
    match part:
        case ExploredVoter():
            return ("voter", name[part.id], *_node(part, name))
        case CallUnderWay(lane=(client, server, kind)):
            messages = [_MESSAGES[type(each)](each, name) for each in (part.request, part.reply)]
            way = (name[client], name[server], kind, part.connection // CONNECTIONS)
            return ("call", *way, *messages, part.late)
        case Promises():
            leaders = tuple(sorted((epoch, name[leader]) for epoch, leader in part.leaders))
            votes = tuple(sorted((name[voter], epoch, name[chosen]) for voter, epoch, chosen in part.votes))
            return ("promises", leaders, votes, _batches(part.committed, name), part.reads)
        case Rest():
            return ("rest", part.left, name[part.cut or None])


def _node(node: ExploredVoter, name: Naming) -> tuple[Any, ...]:
    file = node.file
    stored = (file.epoch, name[file.leader_id], name[file.voted.id if file.voted is not None else None])
    log = (_batches(node.log.batches, name), node.log.durable)
    if node.core is None:
        return ("down", stored, log, node.connections)
    voter = node.core
    held = voter.persisted
    believed = (held.epoch, name[held.leader_id], name[held.voted.id if held.voted is not None else None])
    named = tuple(sorted((name[leader], epoch) for leader, epoch in voter.named_leaders.items()))
    asked = tuple(sorted((name[peer] or 0, kind.__name__) for peer, kind in voter.in_flight))
    voters = _membership(voter, name) if voter.identity.dynamic else ()
    ends = (voter.end_offset, voter.end_epoch, voter.flushed_end, voter.flushing)
    marks = (*voters, voter.high_watermark, node.mark, *ends)
    return (_state(voter.state, name), stored, believed, log, *marks, named, asked, node.connections, node.core.halted)


def _membership(voter: Voter, name: Naming) -> tuple[Any, ...]:
    sets = tuple((offset, _body(voters, name)) for offset, voters in voter.history)
    return (voter.asked, _body(voter.voter_set, name), sets)


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
            return (*who, _set(state.untold, name), _names(state.preferred, name))
        case Leader():
            on_connections, by_voters = state.reads.proofs
            followers = sorted((name[p], f.end_offset, f.begin_due <= 0) for p, f in state.followers.items())
            confirmed = sorted((name[peer], stamp) for peer, stamp in by_voters.items())
            answered = sorted(
                (connection // CONNECTIONS, name[connection // 10 % 10], name[connection % 10], stamp)
                for connection, stamp in on_connections.items()
            )
            observers = sorted(
                (name[key.id], f.end_offset, f.leader_end_offset, f.caught_up_at) for key, f in state.observers.items()
            )
            changes = tuple((each.token, each.offset) for each in state.changes)
            known = (tuple(followers), tuple(observers), changes)
            return (*who, state.epoch_start_offset, known, tuple(confirmed), tuple(answered), state.reads.waiting)
    return who


def _set(ids: set[int], name: Naming) -> tuple[Any, ...]:
    return tuple(sorted(name[each] or 0 for each in ids))


def _names(replicas: Sequence[ReplicaKey], name: Naming) -> tuple[Any, ...]:
    return tuple(name[each.id] for each in replicas)


def _batches(batches: Sequence[Batch], name: Naming) -> tuple[Any, ...]:
    if (known := name.logs.get(batches)) is None:
        named = ((batch.base_offset, batch.epoch, batch.count, _body(batch.body, name)) for batch in batches)
        known = name.logs[batches] = tuple(named)
    return known


def _body(body: Any, name: Naming) -> Any:
    if isinstance(body, VoterSet):
        ports = ((name[entry.key.id] or 0, each.port) for entry in body for each in entry.endpoints)
        return ("voters", *sorted(name[each] or 0 for each in body.ids), *sorted(ports))
    if isinstance(body, KRaftVersion):
        return ("version", body.version)
    if not isinstance(body, LeaderChange):
        return body
    voters, granting = (tuple(sorted(name[each] or 0 for each in ids)) for ids in (body.voters, body.granting_voters))
    return (name[body.leader_id], voters, granting)


def _answered(it: Any, name: Naming) -> tuple[Any, ...]:
    return int(it.error), name[it.leader_id], it.leader_epoch


_MESSAGES: Mapping[type, Callable[[Any, Naming], tuple[Any, ...]]] = {
    NoneType: lambda it, name: (),
    VoteRequest: lambda it, name: (it.epoch, it.last_epoch, it.last_offset, it.pre_vote, name[it.candidate.id]),
    BeginQuorumEpochRequest: lambda it, name: (name[it.leader_id], it.epoch),
    EndQuorumEpochRequest: lambda it, name: (name[it.leader_id], it.epoch, _names(it.preferred_candidates, name)),
    FetchRequest: lambda it, name: (name[it.replica.id], *it[2:6]),
    VoteResponse: lambda it, name: (*_answered(it, name), it.granted, it.pre_vote),
    EpochResponse: _answered,
    FetchResponse: lambda it, name: (
        *_answered(it, name),
        it.high_watermark,
        it.diverging and astuple(it.diverging),
        _batches(it.batches, name),
    ),
}


class Broken(Exception):
    """A violated rule; the message names the rule and the violation."""


def promised_after(act: Act, id: int, promises: Promises, logs: Sequence[tuple[Batch, ...]]) -> Promises:
    """Return the promises after an event of a voter. logs: of all voters before the event.  Raises Broken."""
    match act:
        case Voted(epoch, voted):
            return _vote(promises, id, epoch, voted)
        case Leads(epoch, log):
            other = dict(promises.leaders).get(epoch, id)
            if other != id:
                raise Broken(f"{rules.TWO_LEADERS}: voters {other} and {id} lead epoch {epoch}")
            if (epoch, id) in promises.leaders:
                raise Broken(f"{rules.LEADER_AGAIN}: voter {id} in epoch {epoch}")
            if log[: len(promises.committed)] != promises.committed:
                raise Broken(f"{rules.ENTRY_LOST}: voter {id} leads epoch {epoch} without it")
            return promises._replace(leaders=tuple(sorted({*promises.leaders, (epoch, id)})))
        case Marked():
            return _mark(act, id, promises, logs)
        case Cut(kept, log):
            committed = promises.committed
            if committed[len(kept) :] and log[: len(committed)] == committed:
                raise Broken(f"{rules.ENTRY_LOST}: voter {id} cuts its log to {end(kept)}")
        case Read(token, mark):
            owed = dict(promises.reads).get(token)
            if mark is not None and owed is not None and mark < owed:
                raise Broken(f"stale read: voter {id} answers from below {mark}, and {owed} was committed before")
            return promises._replace(reads=tuple(read for read in promises.reads if read[0] != token))
        case Wrong(rule):
            raise Broken(rule)
    return promises


def _vote(promises: Promises, id: int, epoch: int, voted: int | None) -> Promises:
    known = next((chosen for voter, at, chosen in promises.votes if (voter, at) == (id, epoch)), None)
    if known == voted:
        return promises
    if voted is None:
        raise Broken(f"{rules.VOTE_NOT_KEPT}: voter {id} forgets its vote of epoch {epoch}")
    if known is not None:
        raise Broken(f"{rules.VOTED_TWICE}: voter {id} in epoch {epoch}")
    return promises._replace(votes=tuple(sorted((*promises.votes, (id, epoch, voted)))))


def _mark(mark: Marked, id: int, promises: Promises, logs: Sequence[tuple[Batch, ...]]) -> Promises:
    prefix, committed = mark.prefix, promises.committed
    shorter, longer = sorted((prefix, committed), key=len)
    if longer[: len(shorter)] != shorter:
        raise Broken(f"{rules.PREFIXES_DIFFER}: voter {id} commits up to {end(prefix)}")
    if mark.leads:
        in_force = mark.voters or range(1, len(logs) + 1)
        if sum(at == id or logs[at - 1][: len(prefix)] == prefix for at in in_force) < majority(len(in_force)):
            raise Broken(f"{rules.NO_MAJORITY}: voter {id} commits up to {end(prefix)}")
    return promises._replace(committed=prefix) if len(prefix) > len(committed) else promises


def end(batches: Sequence[Batch]) -> int:
    """Return the offset after the last batch."""
    return batches[-1].end_offset if batches else 0
