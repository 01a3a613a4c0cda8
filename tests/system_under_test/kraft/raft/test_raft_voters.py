"""Voters that come and go (KIP-853): when a set counts, and which changes are refused."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raft_voter import EPOCH, ME, PEER, THIRD, Bench, begin, end, leader_speaks, vote

from system_under_test.kraft.raft import effects, messages
from system_under_test.kraft.raft.changes import AddVoter, RemoveVoter, UpdateVoter
from system_under_test.kraft.raft.voters import (
    VoterEndpoint,
    VoterEntry,
    VoterHistory,
    VoterSet,
    held_by_majority,
    is_lost,
    majority,
    voter_set,
)

NEWCOMER = 4
START = 4  # start of the leader's epoch


def voters(*ids: int) -> VoterSet:
    return voter_set(VoterEntry(messages.ReplicaKey(voter)) for voter in ids)


def leader(*, committed: bool = True, **kwargs) -> Bench:
    """Of epoch 5, whose log is 4 old records, its LeaderChange, kraft.version and the voters 1, 2, 3."""
    bench = Bench.in_role("leader", dynamic=True, **kwargs)
    assert bench.disk.end_offset == START + 3
    if committed:
        fetch(bench, PEER)
        fetch(bench, THIRD)
    return bench


def fetch(bench: Bench, replica: int, offset: int | None = None) -> None:
    """A replica reports that it holds the leader's log below an offset, by default all of it."""
    at = bench.disk.end_offset if offset is None else offset
    bench.ask(bench.fetch(replica, offset=at, last_epoch=EPOCH, max_wait_ms=0), connection=replica)


def change(bench: Bench, wanted, token: int = 900) -> effects.VotersChangeDone | None:
    """The answer, None while it waits for the commit."""
    bench.do(bench.core.change_voters(bench.now, token, wanted))
    return done(bench, token)


def done(bench: Bench, token: int = 900) -> effects.VotersChangeDone | None:
    return next((each for each in bench.all(effects.VotersChangeDone) if each.token == token), None)


def add(voter: int) -> AddVoter:
    return AddVoter(VoterEntry(messages.ReplicaKey(voter)))


def remove(voter: int) -> RemoveVoter:
    return RemoveVoter(messages.ReplicaKey(voter))


def test_a_new_set_counts_from_its_append_on():
    bench = leader()
    fetch(bench, NEWCOMER)
    assert change(bench, add(NEWCOMER)) is None
    assert bench.core.voters == (1, 2, 3, 4)
    fetch(bench, PEER)  # two of four with the leader: no majority of the new set
    assert done(bench) is None and not bench.all(effects.HighWatermark)
    fetch(bench, NEWCOMER)
    assert done(bench).error == messages.Error.NONE
    assert bench.core.high_watermark == bench.disk.end_offset


def test_a_leader_that_removes_itself_leads_until_that_is_committed_and_does_not_count_itself():
    bench = leader()
    assert change(bench, remove(ME)) is None
    fetch(bench, PEER)  # one of the two that remain
    assert bench.core.role == "leader" and done(bench) is None
    fetch(bench, THIRD)
    assert done(bench).error == messages.Error.NONE
    assert [each.role for each in bench.all(effects.RoleChanged)] == ["resigned"]
    assert {request.leader_id for request in bench.sent(messages.EndQuorumEpochRequest)} == {ME}


def test_nothing_changes_before_a_record_of_this_epoch_has_committed():
    bench = leader(committed=False)
    assert change(bench, remove(THIRD)).error == messages.Error.REQUEST_TIMED_OUT
    assert bench.core.voters == (1, 2, 3)


def test_one_change_at_a_time():
    bench = leader()
    assert change(bench, remove(THIRD), 900) is None
    assert change(bench, remove(PEER), 901) is None or done(bench, 901).error == messages.Error.REQUEST_TIMED_OUT
    assert bench.core.voters == (1, 2)
    fetch(bench, PEER)
    assert done(bench, 900).error == messages.Error.NONE
    assert change(bench, remove(PEER), 902) is None or done(bench, 902).error == messages.Error.NONE
    assert bench.core.voters == (1,)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (add(PEER), messages.Error.DUPLICATE_VOTER),
        (add(NEWCOMER), messages.Error.REQUEST_TIMED_OUT),  # it never fetched
        (remove(NEWCOMER), messages.Error.VOTER_NOT_FOUND),
        (UpdateVoter(VoterEntry(messages.ReplicaKey(NEWCOMER))), messages.Error.VOTER_NOT_FOUND),
    ],
)
def test_changes_that_fit_no_voter_are_refused(wanted, error):
    assert change(leader(), wanted).error == error


def test_the_last_voter_cannot_be_removed():
    bench = Bench(messages.QuorumState(EPOCH), log=(), voters=(ME,), dynamic=True)
    assert bench.core.role == "leader" and bench.core.voters == (ME,)
    assert change(bench, remove(ME)).error == messages.Error.INVALID_REQUEST


def test_a_replica_that_lags_may_not_join():
    bench = leader()
    bench.ask(bench.fetch(NEWCOMER, offset=2, last_epoch=2, max_wait_ms=0), connection=NEWCOMER)
    assert change(bench, add(NEWCOMER)).error == messages.Error.REQUEST_TIMED_OUT
    fetch(bench, NEWCOMER)
    assert change(bench, add(NEWCOMER)) is None


@pytest.mark.parametrize(
    ("role", "dynamic", "error"),
    [("leader", False, messages.Error.UNSUPPORTED_VERSION), ("follower", True, messages.Error.NOT_LEADER_OR_FOLLOWER)],
)
def test_static_voters_do_not_change_and_a_follower_changes_none(role, dynamic, error):
    bench = Bench.in_role(role, dynamic=dynamic)
    fetch(bench, PEER)
    assert change(bench, remove(THIRD)).error == error


def test_an_update_keeps_the_set_and_changes_where_a_voter_is_reached():
    bench = leader()
    entry = VoterEntry(messages.ReplicaKey(PEER), (VoterEndpoint("CONTROLLER", "10.0.0.9", 9093),))
    change(bench, UpdateVoter(entry))
    assert bench.core.voters == (1, 2, 3)
    assert bench.all(effects.VotersChanged)[-1].voters.entry(PEER) == entry


def follower() -> Bench:
    """Of leader 2, whose log ends with the voters 1, 2, 3."""
    bench = Bench.in_role("follower", dynamic=True)
    leader_speaks(bench, batches=(messages.Batch(4, EPOCH, 1, voters(1, 2, 3)),))
    return bench


def test_a_follower_takes_a_set_at_its_append_and_takes_it_back_with_a_truncation():
    bench = follower()
    leader_speaks(bench, batches=(messages.Batch(5, EPOCH, 1, voters(2, 3)),))
    assert bench.core.voters == (2, 3)
    leader_speaks(bench, diverging=messages.EpochEnd(EPOCH, 5))
    assert bench.core.voters == (1, 2, 3)
    assert bench.all(effects.VotersChanged)[-1] == effects.VotersChanged(4, voters(1, 2, 3))


def test_a_removed_voter_seeks_no_office_and_may_still_vote():
    bench = follower()
    leader_speaks(bench, batches=(messages.Batch(5, EPOCH, 1, voters(2, 3)),), high_watermark=6)
    for _ in range(5):
        bench.expire()
        assert bench.core.role in ("follower", "unattached")
    answer = bench.ask(vote(EPOCH + 1, candidate=THIRD, last=(EPOCH, 6)))
    assert answer.error == messages.Error.NONE and answer.granted


def test_a_voter_whose_removal_may_not_be_committed_campaigns_without_a_vote_of_its_own():
    """It first asks both voters who leads.  Then it needs both of their votes (Ongaro 2014, figure 4.6)."""
    bench = follower()
    leader_speaks(bench, batches=(messages.Batch(5, EPOCH, 1, voters(2, 3)),))
    for _ in range(2):
        bench.expire()
        assert bench.core.role == "follower"
    bench.expire()
    assert bench.core.role == "prospective"
    bench.grant(PEER)
    assert bench.core.role == "prospective", "its own vote does not count"
    bench.grant(THIRD)
    assert bench.core.role == "candidate"


def test_the_history_of_sets_follows_the_log():
    history = VoterHistory(voters(1))
    assert not history.may_change
    history.append(3, voters(1, 2))
    history.append(7, voters(1, 2, 3))
    assert history.before(3) == (-1, voters(1))
    assert history.before(4) == (3, voters(1, 2))
    assert history.before(100) == (7, voters(1, 2, 3))
    history.truncate(7)
    assert (history.latest_offset, history.latest) == (3, voters(1, 2))
    history.truncate(0)
    assert history.latest == voters(1)
    with pytest.raises(ValueError, match="twice"):
        voters(1, 1)


FOURTH, FIFTH = 4, 5
VOTERS = (PEER, THIRD, FOURTH)


def observer(state: messages.QuorumState | None = None) -> Bench:
    return Bench(state, voters=VOTERS, observer=True)


def test_it_asks_one_voter_after_another_until_one_says_who_leads() -> None:
    bench = observer()
    asked = []
    for _ in range(4):
        [send] = [effect for effect in bench.expire() if isinstance(effect, effects.Send)]
        assert isinstance(send.request, messages.FetchRequest) and bench.core.role == "unattached"
        asked.append(send.peer)
        bench.respond(send.peer, send.request, None)
    assert asked == [PEER, THIRD, FOURTH, PEER]
    [send] = [effect for effect in bench.expire() if isinstance(effect, effects.Send)]
    answer = messages.FetchResponse(messages.Error.NOT_LEADER_OR_FOLLOWER, FOURTH, EPOCH)
    bench.respond(send.peer, send.request, answer)
    assert (bench.core.role, bench.core.leader_id) == ("follower", FOURTH)


def test_it_never_campaigns_and_looks_for_another_leader_when_its_own_is_silent() -> None:
    bench = observer(messages.QuorumState(EPOCH, PEER))
    bench.respond(PEER, bench.sent(messages.FetchRequest)[0], None)
    asked = set()
    for _ in range(400):  # its own leader is asked again after each back-off
        for effect in bench.expire():
            if isinstance(effect, effects.Send):
                asked.add(effect.peer)
                assert isinstance(effect.request, messages.FetchRequest)
                bench.respond(effect.peer, effect.request, None)
        assert bench.core.role == "follower" and bench.core.epoch == EPOCH
    assert asked == set(VOTERS)


def test_it_gives_no_votes_and_leads_nothing() -> None:
    bench = observer()
    for pre_vote in (False, True):
        answer = bench.ask(vote(EPOCH + 3, pre_vote=pre_vote))
        assert (answer.error, answer.granted, bench.core.epoch) == (messages.Error.INCONSISTENT_VOTER_SET, False, EPOCH)
    bench.do(bench.core.propose(bench.now, 77, [("body", 1)]))
    assert bench.all(effects.NotAccepted)
    bench.ask(begin(EPOCH, PEER, voter=ME))
    bench.ask(end(EPOCH, PEER))
    assert bench.core.role == "unattached"


@pytest.mark.parametrize("voters", range(1, 8))
def test_two_majorities_share_a_voter_and_fewer_would_not(voters):
    everybody = range(voters)
    big = [set(group) for group in combinations(everybody, majority(voters))]
    assert all(a & b for a in big for b in big)
    small = [set(group) for group in combinations(everybody, majority(voters) - 1)]
    assert any(not a & b for a in small for b in small)


@given(st.lists(st.integers(-1, 50), min_size=1, max_size=9))
def test_the_mark_is_the_largest_offset_that_a_majority_has_reached(log_ends):
    def reached(offset):
        return sum(end >= offset for end in log_ends) >= majority(len(log_ends))

    mark = held_by_majority(log_ends)
    assert reached(mark)
    assert not any(reached(offset) for offset in log_ends if offset > mark)


@given(st.integers(1, 9), st.integers(0, 9))
def test_a_campaign_is_lost_once_the_others_are_no_majority(voters, refused):
    refused = min(refused, voters)
    assert is_lost(voters, refused) == (voters - refused < majority(voters))
