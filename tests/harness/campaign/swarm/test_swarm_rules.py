"""Each rule of the watch, and of what is judged at the end, is broken on purpose; what looks like it is not blamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


def rows(*said: tuple[Log, str, int, dict[str, Any]], voters: tuple[Log, ...] = ()) -> list[str]:
    """The rules that were broken by these rows: (voter, event, epoch, other columns).

    Where there are voters, each of them votes for the first leader of an epoch."""
    watch = Watch(lambda: 0.0, lambda moment, voter: None, lambda line: None)
    watch.voters = voters
    led = set()
    for voter, event, epoch, rest in said:
        if rest.get("role") == "leader" and epoch not in led:
            led.add(epoch)
            for each in voters:
                watch.row(each, WatchedRow("vote", epoch, peer=voter.name))
        columns = [rest.get(name) for name in ("offset", "hash", "peer", "role", "detail")]
        watch.row(voter, WatchedRow(event, epoch, *columns))
    return [found.rule for found in watch.found]


A, B, C = Log("a"), Log("b"), Log("c")
LEADS: dict[str, Any] = {"role": "leader", "offset": 0}


def test_two_leaders_in_one_epoch() -> None:
    assert rows((A, "role", 1, LEADS), (B, "role", 1, LEADS)) == ["two leaders in one epoch"]
    assert rows((A, "role", 1, LEADS), (B, "role", 2, LEADS)) == []


def test_one_leader_in_two_lives() -> None:
    again = Log("a")
    again.lives = 2
    assert rows((A, "role", 1, LEADS), (again, "role", 1, LEADS)) == ["leader again after a restart"]


def test_two_votes_and_a_vote_that_is_forgotten() -> None:
    for_b, for_c, for_nobody = {"peer": "b"}, {"peer": "c"}, {"peer": None}
    assert rows((A, "vote", 1, for_b), (A, "vote", 1, for_c)) == ["voted twice in one epoch"]
    assert rows((A, "vote", 1, for_b), (A, "quorum-state", 1, for_nobody)) == ["vote not kept"]
    assert rows((A, "vote", 1, for_b), (A, "vote", 2, for_c), (A, "vote", 2, for_c)) == []


def test_a_mark_that_goes_back_but_not_over_a_restart() -> None:
    log = Log("a", hashes={5: 55, 3: 33})
    five, three = {"offset": 5, "hash": 55}, {"offset": 3, "hash": 33}
    assert rows((log, "high-watermark", 1, five), (log, "high-watermark", 1, three)) == ["high watermark went back"]
    started = (log, "start", 1, {"offset": 5, "hash": 55})
    assert rows((log, "high-watermark", 1, five), started, (log, "high-watermark", 1, three)) == []


def test_committed_prefixes_differ_and_a_mark_inside_an_entry() -> None:
    five, other = {"offset": 5, "hash": 55}, {"offset": 5, "hash": 56}
    assert rows((A, "high-watermark", 1, five), (B, "high-watermark", 1, other)) == ["committed prefixes differ"]
    assert rows((A, "high-watermark", 1, {"offset": 5, "hash": None})) == ["a mark where no entry ends"]


@pytest.mark.parametrize(("flushed", "broken"), [(5, []), (4, ["high watermark without a majority"])])
def test_a_leader_commits_what_a_majority_holds_durably(flushed: int, broken: list[str]) -> None:
    leader, other, third = Log("a", 5, {5: 55}), Log("b", flushed, {5: 55}), Log("c", 5, {5: 77})
    said = [(leader, "role", 1, LEADS), (leader, "high-watermark", 1, {"offset": 5, "hash": 55})]
    assert rows(*said, voters=(leader, other, third)) == broken


def test_a_leader_commits_its_own_epoch_first() -> None:
    logs = tuple(Log(name, 5, {5: 55}) for name in "abc")
    leads = (logs[0], "role", 2, {"role": "leader", "offset": 5})
    commits = (logs[0], "high-watermark", 2, {"offset": 5, "hash": 55})
    assert rows(leads, commits, voters=logs) == ["mark without an entry of its epoch"]


def test_a_leader_without_what_is_committed() -> None:
    logs = tuple(Log(name, 5, {5: 55}) for name in "ab")
    late = Log("c", 3, {3: 33})
    commits = (logs[0], "high-watermark", 1, {"offset": 5, "hash": 55})
    said = [(logs[0], "role", 1, LEADS), commits, (late, "role", 2, {"role": "leader", "offset": 3})]
    assert rows(*said, voters=(*logs, late)) == ["committed entry lost"]


def test_logs_differ_below_an_equal_epoch() -> None:
    one, other = Log("a", hashes={5: 55}), Log("b", hashes={5: 56})
    assert rows((one, "append", 1, {"offset": 5}), (other, "append", 1, {"offset": 5})) == [
        "logs differ below an equal epoch"
    ]
    assert rows((one, "append", 1, {"offset": 5}), (other, "append", 2, {"offset": 5})) == []


def test_states_differ_and_a_cut_below_the_mark() -> None:
    assert rows((A, "applied", 1, {"offset": 3, "hash": 1}), (B, "applied", 1, {"offset": 3, "hash": 2})) == [
        "applied states differ"
    ]
    log = Log("a", hashes={5: 55})
    assert rows((log, "high-watermark", 1, {"offset": 5, "hash": 55}), (log, "truncate", 2, {"offset": 4})) == [
        "truncation below the high watermark"
    ]


@pytest.mark.parametrize("forgets", [False, True])
def test_a_voter_cuts_what_is_committed_and_does_not_know_it(forgets: bool) -> None:
    """The mark of a follower lags behind: the cut is above it.  A disk that only fails keeps what it held."""
    leader, follower, third = Log("a", 5, {5: 55}), Log("b", 5, {5: 55}), Log("c")
    follower.may_stop, follower.may_forget = True, forgets
    commits = (leader, "high-watermark", 1, {"offset": 5, "hash": 55})
    cut, harmless = (follower, "truncate", 2, {"offset": 4}), (third, "truncate", 2, {"offset": 0})
    said = [(leader, "role", 1, LEADS), commits, harmless, cut]
    assert rows(*said, voters=(leader, follower, third)) == ([] if forgets else ["committed entry lost"])


def test_a_leader_is_elected_by_a_majority() -> None:
    """A vote for another one, or of another epoch, is none.  A voter may name the leader by its number."""
    logs = [Log(f"n{number}") for number in (1, 2, 3)]
    for votes, broken in (
        ([(0, 1, "n1"), (1, 1, "1")], []),
        ([(0, 1, "n1"), (1, 1, "n2")], ["elected without a majority"]),
        ([(0, 1, "n1"), (1, 2, "n1")], ["elected without a majority"]),
    ):
        watch = Watch(lambda: 0.0, lambda moment, voter: None, lambda line: None)
        watch.voters = logs
        for who, epoch, peer in votes:
            watch.row(logs[who], WatchedRow("vote", epoch, peer=peer))
        watch.row(logs[0], WatchedRow("role", 1, 0, role="leader"))
        assert [found.rule for found in watch.found] == broken


@pytest.mark.parametrize(("flushed", "broken"), [(5, []), (4, ["a candidate whose log is not durable"])])
def test_a_candidate_asks_for_votes_with_a_durable_log(flushed: int, broken: list[str]) -> None:
    """Who only votes for another one may flush later."""
    log = Log("n1", flushed, {5: 55})
    assert rows((log, "vote", 1, {"peer": "n1"})) == broken
    assert rows((log, "vote", 1, {"peer": "1"})) == broken
    assert rows((log, "vote", 1, {"peer": "n2"})) == []


@pytest.mark.parametrize("forgets", [False, True])
def test_a_voter_finds_what_is_committed_when_it_starts_again(forgets: bool) -> None:
    """One whose log is damaged may refuse to start, but may not forget."""
    leader, follower, third = Log("a", 5, {5: 55}), Log("b", 5, {5: 55}), Log("c")
    follower.may_stop, follower.may_forget = True, forgets
    commits = (leader, "high-watermark", 1, {"offset": 5, "hash": 55})
    starts = [(log, "start", 1, {"offset": end, "hash": 0}) for log, end in ((leader, 5), (third, 0), (follower, 4))]
    said = [(leader, "role", 1, LEADS), commits, *starts]
    assert rows(*said, voters=(leader, follower, third)) == ([] if forgets else ["committed entry lost"])


@pytest.mark.parametrize(("durable", "broken"), [(5, []), (4, ["what is reported as durable is not"])])
def test_what_is_reported_as_durable_is_so_on_the_disk(durable: int, broken: list[str]) -> None:
    log = Log("a", 5, {5: 55})
    log.durable_end = durable
    assert rows((log, "flush", 1, {"offset": 5}), (log, "flush", 1, {"offset": 5})) == broken


@pytest.mark.parametrize(
    ("flushed", "prefix", "broken"), [(5, 55, ["committed entry lost"]), (4, 55, []), (5, 56, []), (6, 55, [])]
)
def test_a_voter_that_lags_keeps_what_it_has_made_durable_of_what_is_committed(
    flushed: int, prefix: int, broken: list[str]
) -> None:
    """It reports the flush after the commit.  What is not committed may be forgotten, as may a tail that differs."""
    leader, other, late = (Log(name, 5, {5: 55}) for name in "abc")
    late.flushed, late.durable_end, late.hashes[5] = 0, flushed, prefix
    commits = (leader, "high-watermark", 1, {"offset": 5, "hash": 55})
    flushes, starts = (late, "flush", 1, {"offset": flushed}), (late, "start", 1, {"offset": 3, "hash": 33})
    said = [(leader, "role", 1, LEADS), commits, flushes, starts]
    assert rows(*said, voters=(leader, other, late)) == broken


def test_a_leader_with_a_successor_is_a_moment() -> None:
    met: list[tuple[str, str]] = []
    watch = Watch(lambda: 0.0, lambda moment, voter: met.append((moment, voter.name)), lambda line: None)
    one, other = Log("a", 5, {5: 55}), Log("b", 5, {5: 55})
    watch.voters = (one, other)
    for voter, epoch in ((one, 1), (other, 2)):
        watch.row(voter, WatchedRow("role", epoch, 0, role="leader"))
    assert not [who for moment, who in met if moment == "succeeded"], "the successor has committed nothing yet"
    watch.row(other, WatchedRow("high-watermark", 2, 5, 55))
    assert [who for moment, who in met if moment == "succeeded"] == ["a"]


def test_a_voter_stops_unless_its_disk_failed() -> None:
    sick = Log("b")
    sick.may_stop = True
    assert rows((A, "fatal", 1, {"detail": "two leaders"}), (sick, "fatal", 1, {"detail": "EIO"})) == ["a voter stops"]


def test_a_snapshot_is_the_state_of_a_committed_prefix() -> None:
    """Another state, or an end that nothing committed reaches, is wrong; a state that nobody applied says nothing."""
    mark = (A, "high-watermark", 1, {"offset": 5, "hash": 55})
    applied = (A, "applied", 1, {"offset": 5, "hash": 9})
    taken = (A, "snapshot", 1, {"offset": 5, "hash": 9})
    assert rows(mark, applied, taken, (B, "snapshot", 1, {"offset": 5, "hash": 9, "peer": "a"})) == []
    assert rows(mark, taken) == []
    assert rows(mark, applied, (A, "snapshot", 1, {"offset": 5, "hash": 8})) == ["snapshot differs from its prefix"]
    ahead = (A, "snapshot", 1, {"offset": 6, "hash": 9})
    assert rows(mark, applied, ahead) == ["snapshot beyond the high watermark"]


@pytest.mark.parametrize(("log_start", "broken"), [(5, []), (6, ["log begins behind its snapshot"])])
def test_a_log_begins_at_or_below_the_newest_snapshot(log_start: int, broken: list[str]) -> None:
    log = Log("a", 9, {9: 99})
    log.snapshot_end, log.log_start = 5, log_start
    assert rows((log, "append", 1, {"offset": 9})) == broken


def test_a_voter_whose_snapshot_covers_a_mark_holds_what_is_below_it() -> None:
    leader, other, third = Log("a", 5, {5: 55}), Log("b", 9, {9: 99}), Log("c")
    leads = (leader, "role", 1, {"role": "leader", "offset": 1})
    commits = (leader, "high-watermark", 1, {"offset": 5, "hash": 55})
    assert rows(leads, commits, voters=(leader, other, third)) == ["high watermark without a majority"]
    other.log_start = 7
    assert rows(leads, commits, voters=(leader, other, third)) == []


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
    watch = Watch(lambda: 0.0, lambda moment, voter: None, lambda line: None)
    judge(Scenario(1, workload=workload), history, [best], watch, [])  # type: ignore[list-item]
    return [found.rule for found in watch.found]


def did(function: str, value: int | None, began: int, ended: int, type_: Type = Type.OK, got: Any = None) -> Asked:
    return Asked(0, function, "k", value, began, 0.0, "a", ended, 0.0, type_, got)


LOG: list[tuple[int, str, int | str | None]] = [(0, "k", 1), (1, "k", 2)]
WROTE = (did("write", 1, 0, 1), did("write", 2, 2, 3))

BROKEN: dict[str, Callable[[], list[str]]] = {
    "lost write": lambda: judged("register", LOG, *WROTE, did("write", 3, 4, 5)),
    "failed write in the log": lambda: judged("register", LOG, WROTE[0], did("write", 2, 2, 3, Type.FAIL)),
    "write in the log twice": lambda: judged("register", [*LOG, (2, "k", 1)], WROTE[1]),
    "read of no committed value": lambda: judged("register", LOG, *WROTE, did("read", None, 4, 5, got=9)),
    "not linearizable": lambda: judged("register", LOG, *WROTE, did("read", None, 4, 5, got=1)),
    "committed log cannot be read": lambda: judged("register", LOG, *WROTE, kind=Unreadable),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_what_is_judged_at_the_end(rule: str) -> None:
    assert rule in BROKEN[rule]()


def test_what_only_looks_wrong_is_not_blamed() -> None:
    overlapping = did("read", None, 2, 5, got=1)
    unknown = did("write", 3, 4, 5, Type.INFO)
    assert judged("register", LOG, *WROTE, overlapping, unknown) == []


def test_lists_are_read_as_a_whole() -> None:
    log: list[tuple[int, str, int | str | None]] = [(0, "k", "1:0"), (1, "k", "1:0,2:0")]
    appended = (did("append", 1, 0, 1), did("append", 2, 2, 3))
    assert judged("list", log, *appended, did("read", None, 4, 5, got=(1, 2))) == []
    assert judged("list", log, *appended, did("read", None, 4, 5, got=(1,))) == ["not linearizable"]
    assert judged("list", log, *appended, did("read", None, 4, 5, got=(2, 1))) == ["read of no committed value"]


def test_values_that_repeat_are_searched_for_an_order() -> None:
    log: list[tuple[int, str, int | str | None]] = [(0, "k", 1), (1, "k", 2), (2, "k", 1)]
    wrote = (did("write", 1, 0, 1), did("write", 2, 2, 3))
    assert judged("repeated", log, *wrote, did("read", None, 4, 5, got=1)) == ["not linearizable"]
    again = did("write", 1, 4, 7, Type.INFO)
    assert judged("repeated", log, *wrote, again, did("read", None, 5, 6, got=1)) == []


def test_who_is_followed_leads_that_epoch() -> None:
    leads = (A, "role", 1, LEADS)
    assert rows(leads, (B, "role", 1, {"role": "follower", "peer": "a"})) == []
    assert rows((B, "role", 1, {"role": "follower", "peer": "a"})) == ["follows who does not lead"]
    assert rows(leads, (B, "role", 1, {"role": "follower", "peer": "c"})) == ["follows who does not lead"]
    assert rows(leads, (B, "role", 2, {"role": "follower", "peer": "a"})) == ["follows who does not lead"]


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
