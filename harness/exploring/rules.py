"""Rules that must hold after every act of a voter, and what each act promises for ever."""

from __future__ import annotations

from collections.abc import Sequence

from checkers.raft.rules import (
    ENTRY_LOST,
    LEADER_AGAIN,
    NO_MAJORITY,
    PREFIXES_DIFFER,
    TWO_LEADERS,
    VOTE_NOT_KEPT,
    VOTED_TWICE,
)
from harness.exploring.parts import Parts, Promises
from harness.exploring.voter import Act, Cut, Leads, Marked, Read, Voted, Wrong
from system_under_test.kraft.raft.messages import Batch
from system_under_test.kraft.raft.voters import majority


class Broken(Exception):
    """A rule does not hold; the message says which, and how."""


def promised_after(act: Act, id: int, promises: Promises, voters: Sequence[int], parts: Parts) -> Promises:
    """voters: the numbers of all voters, as they were before the step.  Raises Broken."""
    match act:
        case Voted(epoch, voted):
            return _vote(promises, id, epoch, voted)
        case Leads(epoch, log):
            other = dict(promises.leaders).get(epoch, id)
            if other != id:
                raise Broken(f"{TWO_LEADERS}: voters {other} and {id} lead epoch {epoch}")
            if (epoch, id) in promises.leaders:
                raise Broken(f"{LEADER_AGAIN}: voter {id} in epoch {epoch}")
            if log[: len(promises.committed)] != promises.committed:
                raise Broken(f"{ENTRY_LOST}: voter {id} leads epoch {epoch} without it")
            return promises._replace(leaders=tuple(sorted({*promises.leaders, (epoch, id)})))
        case Marked():
            return _mark(act, id, promises, voters, parts)
        case Cut(kept, log):
            committed = promises.committed
            if committed[len(kept) :] and log[: len(committed)] == committed:
                raise Broken(f"{ENTRY_LOST}: voter {id} cuts its log to {end(kept)}")
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
        raise Broken(f"{VOTE_NOT_KEPT}: voter {id} forgets its vote of epoch {epoch}")
    if known is not None:
        raise Broken(f"{VOTED_TWICE}: voter {id} in epoch {epoch}")
    return promises._replace(votes=tuple(sorted((*promises.votes, (id, epoch, voted)))))


def _mark(mark: Marked, id: int, promises: Promises, voters: Sequence[int], parts: Parts) -> Promises:
    prefix, committed = mark.prefix, promises.committed
    shorter, longer = sorted((prefix, committed), key=len)
    if longer[: len(shorter)] != shorter:
        raise Broken(f"{PREFIXES_DIFFER}: voter {id} commits up to {end(prefix)}")
    if mark.leads:
        in_force = mark.voters or range(1, len(voters) + 1)
        logs = {at: parts.node(number).log.batches for at, number in enumerate(voters, 1)}
        if sum(at == id or logs[at][: len(prefix)] == prefix for at in in_force) < majority(len(in_force)):
            raise Broken(f"{NO_MAJORITY}: voter {id} commits up to {end(prefix)}")
    return promises._replace(committed=prefix) if len(prefix) > len(committed) else promises


def end(batches: Sequence[Batch]) -> int:
    """The offset behind the last batch."""
    return batches[-1].end_offset if batches else 0
