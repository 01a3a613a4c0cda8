"""Each rule of the watch, and of what is judged at the end, is broken on purpose; what looks like it is not blamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import pytest

from checkers.base.history import Type
from harness.campaign.swarm.clients import Asked, History
from harness.campaign.swarm.judging import judge
from harness.campaign.swarm.scenario import Scenario
from harness.campaign.swarm.watch import Watch, WatchedRow
from system_under_test.kraft.log.log import DamagedLog


class Log:
    """A voter whose log holds what a test says.  hashes: end offset -> what identifies the prefix."""

    def __init__(self, name: str, flushed: int = 0, hashes: dict[int, int] | None = None) -> None:
        self.name, self.lives, self.may_stop, self.may_forget = name, 1, False, False
        self.flushed = flushed
        self.hashes = {0: 0, **(hashes or {})}
        self.end = (1, max(self.hashes))
        self.durable_end = max(self.hashes)
        self.mark = max(self.hashes)
        self.written: list[tuple[tuple[int, int], str, int | str | None]] = []

    log_start = 0
    snapshot_end = 0
    epoch = 0

    @property
    def key(self) -> str:
        return self.name

    def prefix(self, offset: int) -> int | None:
        return self.hashes.get(offset)

    def changes(self, offset: int, end_offset: int) -> Iterator[tuple[tuple[int, int], str, int | str | None]]:
        return iter(self.written)


Row = tuple[Log, str, int, dict[str, Any]]
"""(voter, event, epoch, other columns)"""


def watch_of(voters: Sequence[Log] = (), met: Callable[[str, Any], None] = lambda moment, voter: None) -> Watch:
    watch = Watch(lambda: 0.0, met, lambda line: None)
    watch.voters = voters
    return watch


def rows(*said: Row, voters: Sequence[Log] = ()) -> list[str]:
    """The rules that were broken by these rows.

    Where there are voters, each of them votes for the first leader of an epoch."""
    watch, led = watch_of(voters), set()
    for voter, event, epoch, rest in said:
        if rest.get("role") == "leader" and epoch not in led:
            led.add(epoch)
            for each in voters:
                watch.row(each, WatchedRow("vote", epoch, peer=voter.name))
        columns = [rest.get(name) for name in ("offset", "hash", "peer", "role", "detail")]
        watch.row(voter, WatchedRow(event, epoch, *columns))
    return [found.rule for found in watch.found]


def leads(log: Log, epoch: int = 1, offset: int = 0) -> Row:
    return log, "role", epoch, {"role": "leader", "offset": offset}


def votes(log: Log, peer: str | None, epoch: int = 1) -> Row:
    return log, "vote", epoch, {"peer": peer}


def at(log: Log, event: str, offset: int, hash_: int | None = None, epoch: int = 1) -> Row:
    return log, event, epoch, {"offset": offset, "hash": hash_}


def marks(log: Log, offset: int = 5, hash_: int | None = 55, epoch: int = 1) -> Row:
    return at(log, "high-watermark", offset, hash_, epoch)


def follows(peer: str, epoch: int = 1) -> Row:
    return B, "role", epoch, {"role": "follower", "peer": peer}


A, B, C, AGAIN, SICK = Log("a"), Log("b"), Log("c"), Log("a"), Log("b")
AGAIN.lives, SICK.may_stop = 2, True
HELD, OTHER = Log("a", hashes={3: 33, 5: 55}), Log("b", hashes={5: 56})
THREE = tuple(Log(name, 5, {5: 55}) for name in "abc")
LATE = Log("c", 3, {3: 33})
APPLIED, SNAPSHOT = at(A, "applied", 5, 9), at(A, "snapshot", 5, 9)


@pytest.mark.parametrize(
    ("said", "broken"),
    [
        ([leads(A), leads(B)], "two leaders in one epoch"),
        ([leads(A), leads(B, 2)], ""),
        ([leads(A), leads(AGAIN)], "leader again after a restart"),
        ([votes(A, "b"), votes(A, "c")], "voted twice in one epoch"),
        ([votes(A, "b"), votes(A, "c", 2), votes(A, "c", 2)], ""),
        ([votes(A, "b"), (A, "quorum-state", 1, {})], "vote not kept"),
        ([marks(HELD), marks(HELD, 3, 33)], "high watermark went back"),
        ([marks(HELD), at(HELD, "start", 5, 55), marks(HELD, 3, 33)], ""),
        ([marks(A), marks(B, 5, 56)], "committed prefixes differ"),
        ([marks(A, 5, None)], "a mark where no entry ends"),
        ([at(HELD, "append", 5), at(OTHER, "append", 5)], "logs differ below an equal epoch"),
        ([at(HELD, "append", 5), at(OTHER, "append", 5, epoch=2)], ""),
        ([at(A, "applied", 3, 1), at(B, "applied", 3, 2)], "applied states differ"),
        ([marks(HELD), at(HELD, "truncate", 4, epoch=2)], "truncation below the high watermark"),
        ([(A, "fatal", 1, {"detail": "two leaders"}), (SICK, "fatal", 1, {"detail": "EIO"})], "a voter stops"),
        ([marks(A), APPLIED, SNAPSHOT, (B, "snapshot", 1, {"offset": 5, "hash": 9, "peer": "a"})], ""),
        ([marks(A), SNAPSHOT], ""),  # a state that nobody applied says nothing
        ([marks(A), APPLIED, at(A, "snapshot", 5, 8)], "snapshot differs from its prefix"),
        ([marks(A), APPLIED, at(A, "snapshot", 6, 9)], "snapshot beyond the high watermark"),
        ([leads(A), follows("a")], ""),
        ([follows("a")], "follows who does not lead"),
        ([leads(A), follows("c")], "follows who does not lead"),
        ([leads(A), follows("a", 2)], "follows who does not lead"),
    ],
)
def test_what_rows_break_alone(said: list[Row], broken: str) -> None:
    assert rows(*said) == ([broken] if broken else [])


@pytest.mark.parametrize(("flushed", "broken"), [(5, []), (4, ["high watermark without a majority"])])
def test_a_leader_commits_what_a_majority_holds_durably(flushed: int, broken: list[str]) -> None:
    leader, other, third = Log("a", 5, {5: 55}), Log("b", flushed, {5: 55}), Log("c", 5, {5: 77})
    assert rows(leads(leader), marks(leader), voters=(leader, other, third)) == broken


def test_a_leader_has_what_is_committed_and_commits_its_own_epoch_first() -> None:
    leader, other, _ = THREE
    assert rows(leads(leader, 2, 5), marks(leader, epoch=2), voters=THREE) == ["mark without an entry of its epoch"]
    said = [leads(leader), marks(leader), leads(LATE, 2, 3)]
    assert rows(*said, voters=(leader, other, LATE)) == ["committed entry lost"]


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize(("event", "epoch"), [("truncate", 2), ("start", 1)])
def test_a_voter_keeps_what_is_committed(event: str, epoch: int, forgets: bool) -> None:
    """The mark of a follower lags behind: a cut is above it.  A disk that only fails keeps what it held, and a voter
    whose log is damaged may refuse to start, but may not forget.
    """
    leader, follower, third = Log("a", 5, {5: 55}), Log("b", 5, {5: 55}), Log("c")
    follower.may_stop, follower.may_forget = True, forgets
    harmless = [(third, 0), *([(leader, 5)] if event == "start" else [])]
    keeps = [at(log, event, end, 0, epoch) for log, end in (*harmless, (follower, 4))]
    found = rows(leads(leader), marks(leader), *keeps, voters=(leader, follower, third))
    assert found == ([] if forgets else ["committed entry lost"])


@pytest.mark.parametrize(
    ("given", "broken"),
    [
        ([(0, 1, "n1"), (1, 1, "1")], []),  # a voter may name the leader by its number
        ([(0, 1, "n1"), (1, 1, "n2")], ["elected without a majority"]),
        ([(0, 1, "n1"), (1, 2, "n1")], ["elected without a majority"]),
    ],
)
def test_a_leader_is_elected_by_a_majority(given: list[tuple[int, int, str]], broken: list[str]) -> None:
    """A vote for another one, or of another epoch, is none."""
    logs = [Log(f"n{number}") for number in (1, 2, 3)]
    watch = watch_of(logs)
    for who, epoch, peer in given:
        watch.row(logs[who], WatchedRow("vote", epoch, peer=peer))
    watch.row(logs[0], WatchedRow("role", 1, 0, role="leader"))
    assert [found.rule for found in watch.found] == broken


@pytest.mark.parametrize(("flushed", "broken"), [(5, []), (4, ["a candidate whose log is not durable"])])
def test_a_candidate_asks_for_votes_with_a_durable_log(flushed: int, broken: list[str]) -> None:
    """Who only votes for another one may flush later."""
    log = Log("n1", flushed, {5: 55})
    assert [rows(votes(log, peer)) for peer in ("n1", "1", "n2")] == [broken, broken, []]


@pytest.mark.parametrize(("durable", "broken"), [(5, []), (4, ["what is reported as durable is not"])])
def test_what_is_reported_as_durable_is_so_on_the_disk(durable: int, broken: list[str]) -> None:
    log = Log("a", 5, {5: 55})
    log.durable_end = durable
    assert rows(at(log, "flush", 5), at(log, "flush", 5)) == broken


@pytest.mark.parametrize(
    ("flushed", "prefix", "broken"), [(5, 55, ["committed entry lost"]), (4, 55, []), (5, 56, []), (6, 55, [])]
)
def test_a_voter_that_lags_keeps_what_it_has_made_durable_of_what_is_committed(
    flushed: int, prefix: int, broken: list[str]
) -> None:
    """It reports the flush after the commit.  What is not committed may be forgotten, as may a tail that differs."""
    leader, other, late = (Log(name, 5, {5: 55}) for name in "abc")
    late.flushed, late.durable_end, late.hashes[5] = 0, flushed, prefix
    said = [leads(leader), marks(leader), at(late, "flush", flushed), at(late, "start", 3, 33)]
    assert rows(*said, voters=(leader, other, late)) == broken


def test_a_leader_with_a_successor_is_a_moment() -> None:
    met: list[str] = []
    one, other, _ = THREE
    watch = watch_of((one, other), lambda moment, voter: met.extend([voter.name] * (moment == "succeeded")))
    for voter, epoch in ((one, 1), (other, 2)):
        watch.row(voter, WatchedRow("role", epoch, 0, role="leader"))
    assert met == [], "the successor has committed nothing yet"
    watch.row(other, WatchedRow("high-watermark", 2, 5, 55))
    assert met == ["a"]


@pytest.mark.parametrize(("log_start", "broken"), [(5, []), (6, ["log begins behind its snapshot"])])
def test_a_log_begins_at_or_below_the_newest_snapshot(log_start: int, broken: list[str]) -> None:
    log = Log("a", 9, {9: 99})
    log.snapshot_end, log.log_start = 5, log_start
    assert rows(at(log, "append", 9)) == broken


def test_a_voter_whose_snapshot_covers_a_mark_holds_what_is_below_it() -> None:
    leader, other, third = Log("a", 5, {5: 55}), Log("b", 9, {9: 99}), Log("c")
    said = leads(leader, 1, 1), marks(leader)
    assert rows(*said, voters=(leader, other, third)) == ["high watermark without a majority"]
    other.log_start = 7
    assert rows(*said, voters=(leader, other, third)) == []


# The end


class Unreadable(Log):
    """A voter whose committed log is damaged."""

    def changes(self, offset: int, end_offset: int) -> NoReturn:
        raise DamagedLog("byte 9: a batch of 221 bytes, 78 are there")


def judged(
    workload: str, log: list[tuple[int, str, int | str | None]], *asked: Asked, kind: type[Log] = Log
) -> list[str]:
    best = kind("a", hashes={len(log): 1})
    best.written = [((at, 0), key, value) for at, key, value in log]
    history = History()
    history.asked = list(asked)
    watch = watch_of()
    judge(Scenario(1, workload=workload), history, [best], watch, [])  # type: ignore[list-item]
    return [found.rule for found in watch.found]


def did(function: str, value: int | None, began: int, ended: int, type_: Type = Type.OK, got: Any = None) -> Asked:
    return Asked(0, function, "k", value, began, 0.0, "a", ended, 0.0, type_, got)


LOG: list[tuple[int, str, int | str | None]] = [(0, "k", 1), (1, "k", 2)]
WROTE = (did("write", 1, 0, 1), did("write", 2, 2, 3))

TWICE = [*LOG, (2, "k", 1)]
LISTS: list[tuple[int, str, int | str | None]] = [(0, "k", "1:0"), (1, "k", "1:0,2:0")]
APPENDED = (did("append", 1, 0, 1), did("append", 2, 2, 3))


@pytest.mark.parametrize(
    ("workload", "log", "asked", "broken"),
    [
        ("register", LOG, (*WROTE, did("write", 3, 4, 5)), "lost write"),
        ("register", LOG, (WROTE[0], did("write", 2, 2, 3, Type.FAIL)), "failed write in the log"),
        ("register", TWICE, (WROTE[1],), "write in the log twice"),
        ("register", LOG, (*WROTE, did("read", None, 4, 5, got=9)), "read of no committed value"),
        ("register", LOG, (*WROTE, did("read", None, 4, 5, got=1)), "not linearizable"),
        ("register", LOG, (*WROTE, did("read", None, 2, 5, got=1), did("write", 3, 4, 5, Type.INFO)), ""),
        ("list", LISTS, (*APPENDED, did("read", None, 4, 5, got=(1, 2))), ""),
        ("list", LISTS, (*APPENDED, did("read", None, 4, 5, got=(1,))), "not linearizable"),
        ("list", LISTS, (*APPENDED, did("read", None, 4, 5, got=(2, 1))), "read of no committed value"),
        ("repeated", TWICE, (*WROTE, did("read", None, 4, 5, got=1)), "not linearizable"),
        ("repeated", TWICE, (*WROTE, did("write", 1, 4, 7, Type.INFO), did("read", None, 5, 6, got=1)), ""),
    ],
)
def test_what_is_judged_at_the_end(workload: str, log: Any, asked: Sequence[Asked], broken: str) -> None:
    found = judged(workload, log, *asked)
    assert broken in found if broken else found == []


def test_a_committed_log_that_cannot_be_read_is_found() -> None:
    assert "committed log cannot be read" in judged("register", LOG, *WROTE, kind=Unreadable)


@pytest.mark.parametrize(("opens", "broken"), [(True, []), (False, ["an epoch without an opening record"])])
def test_a_leader_opens_its_epoch_with_a_record(opens: bool, broken: list[str]) -> None:
    now = 1.0
    watch = Watch(lambda: now, lambda moment, voter: None, lambda line: None)
    watch.row(A, WatchedRow("role", 1, 0, role="leader"))
    if opens:
        watch.row(A, WatchedRow("append", 1, 0))
    now = 2.0
    watch.row(A, WatchedRow("role", 1, role="resigned"))
    assert [found.rule for found in watch.found] == broken
