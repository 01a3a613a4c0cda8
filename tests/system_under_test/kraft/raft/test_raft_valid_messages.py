"""What a peer says is checked before it touches memory or disk: a voter neither dies of it nor persists nonsense."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raft_voter import CLUSTER, EPOCH, ME, PEER, ROLES, THIRD, Bench, begin, end, vote

from system_under_test.kraft.raft import messages, valid_messages
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.effects import Fatal, Persist, Truncate
from system_under_test.kraft.raft.voters import StaticVoters

STRANGER = 9
NEW_DISK = UUID(int=77)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)


NEXT = EPOCH + 1


def vote_for(candidate, directory=None):
    return messages.VoteRequest(
        CLUSTER, NEXT, messages.ReplicaKey(candidate, directory), messages.ReplicaKey(ME), 4, 99, False
    )


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("stranger", [STRANGER, -5, -1, 0, 2**31 - 1])
def test_who_is_no_voter_gets_94_and_changes_nothing(role, stranger):
    """A vote for replica -5 was granted and persisted once, and the node could not start again."""
    bench = Bench.in_role(role)
    before = bench.disk.quorum_state
    for request in (vote_for(stranger), begin(NEXT, stranger), end(NEXT, stranger), end(NEXT, PEER, THIRD, stranger)):
        assert bench.ask(request).error == messages.Error.INCONSISTENT_VOTER_SET
        assert (bench.core.role, bench.core.epoch, bench.disk.quorum_state) == (role, EPOCH, before)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("epoch", [2**31 - 1, -1])
def test_an_epoch_that_no_voter_can_have_reached_is_invalid(role, epoch):
    """From the largest int32 no election could lead on."""
    bench = Bench.in_role(role)
    for request in (vote(epoch), begin(epoch), end(epoch)):
        assert bench.ask(request).error == messages.Error.INVALID_REQUEST
        assert (bench.core.role, bench.core.epoch) == (role, EPOCH)


def test_a_successor_named_twice_is_invalid():
    bench = Bench.in_role("follower")
    assert bench.ask(end(EPOCH, PEER, THIRD, THIRD)).error == messages.Error.INVALID_REQUEST


@pytest.mark.parametrize(
    "fields",
    [
        {"replica": messages.ReplicaKey(-1)},
        {"replica": messages.ReplicaKey(ME)},
        {"max_wait_ms": -1},
        {"fetch_offset": -1},
        {"last_fetched_epoch": -1},
        {"last_fetched_epoch": EPOCH + 1},
    ],
)
def test_a_fetch_that_no_replica_sends_is_invalid(fields):
    bench = Bench.in_role("leader")
    request = bench.fetch(offset=4, last_epoch=4)._replace(**fields)
    assert bench.ask(request).error == messages.Error.INVALID_REQUEST


def test_no_fetch_waits_for_ever_or_gets_more_than_a_frame_holds():
    bench = Bench.in_role("leader")
    assert bench.ask(bench.fetch(offset=5, last_epoch=5, high_watermark=5, max_wait_ms=2**31 - 1)) is None
    (parked,) = bench.core.state.parked
    assert parked.deadline <= bench.now + 5.0
    sizes = []
    read = bench.disk.read
    bench.disk.read = lambda offset, size: sizes.append(size) or read(offset, size)
    bench.ask(bench.fetch(THIRD, offset=0, last_epoch=0, max_size_bytes=2**31 - 1))
    assert sizes == [1 << 20]


@pytest.mark.parametrize("role", ROLES)
def test_an_answer_that_names_a_leader_who_is_no_voter_is_no_answer(role):
    bench = Bench.in_role(role)
    before = bench.disk.quorum_state
    requests = vote_for(ME), begin(NEXT), bench.fetch(ME, offset=4, last_epoch=4)
    for request in requests:
        for epoch in (EPOCH, EPOCH + 1, 2**31 - 1):
            kind = {messages.VoteRequest: messages.VoteResponse, messages.FetchRequest: messages.FetchResponse}.get(
                type(request), messages.EpochResponse
            )
            more = (True, False) if kind is messages.VoteResponse else ()
            bench.respond(PEER, request, kind(messages.Error.NONE, STRANGER, epoch, *more))
            assert (bench.core.role, bench.core.epoch, bench.disk.quorum_state) == (role, EPOCH, before)
            assert not bench.all(Fatal)


@pytest.mark.parametrize(
    "diverging", [messages.EpochEnd(-5, 3), messages.EpochEnd(4, -3), messages.EpochEnd(EPOCH + 1, 3)]
)
def test_a_divergence_that_no_log_can_have_cuts_nothing(diverging):
    bench = Bench.in_role("follower")
    request = bench.fetch(ME, offset=4, last_epoch=4)
    bench.respond(PEER, request, messages.FetchResponse(messages.Error.NONE, PEER, EPOCH, None, diverging))
    assert not bench.all(Truncate)
    assert not bench.all(Fatal)


@pytest.mark.parametrize("role", [role for role in ROLES if role not in ("leader", "resigned")])
@pytest.mark.parametrize("epoch", [EPOCH, EPOCH + 3])
def test_who_is_said_to_lead_what_it_never_led_goes_beyond_that_epoch(role, epoch):
    """It neither leads nor votes there; a single deceived peer must not stop it."""
    bench = Bench.in_role(role)
    known = bench.core.leader_id
    bench.respond(THIRD, vote_for(ME), messages.VoteResponse(messages.Error.NONE, ME, epoch, False, False))
    if epoch == EPOCH and known is not None:
        assert bench.all(Fatal), "two leaders of one epoch"
        return
    assert not bench.all(Fatal)
    assert (bench.core.role, bench.core.epoch) == ("unattached", epoch + 1)
    assert bench.disk.quorum_state.voted is None


# Directories


def with_directories(role):
    bench = Bench.in_role(role)
    voter = bench.core
    identity = replace(voter.identity, directories={PEER: UUID(int=1), THIRD: UUID(int=2)})
    voter.identity, voter.records = identity, StaticVoters(identity)
    voter.load_voters()
    return bench


def test_a_voter_with_a_new_disk_gets_no_vote():
    bench = with_directories("unattached")
    assert bench.ask(vote_for(PEER, NEW_DISK)).error == messages.Error.INCONSISTENT_VOTER_SET
    assert not bench.all(Persist)
    assert bench.ask(vote_for(PEER, UUID(int=1))).granted


def test_a_voter_with_a_new_disk_is_served_and_does_not_count():
    bench = with_directories("leader")
    fetch = bench.fetch(PEER, offset=5, last_epoch=5, max_wait_ms=0)
    response = bench.ask(fetch._replace(replica=messages.ReplicaKey(PEER, NEW_DISK)))
    assert (response.error, bench.core.high_watermark) == (messages.Error.NONE, None)
    bench.ask(fetch._replace(replica=messages.ReplicaKey(PEER, UUID(int=1))))
    assert bench.core.high_watermark == 5


def test_votes_are_requested_from_the_known_directories():
    bench = with_directories("unattached")
    bench.expire()
    voters = {request.voter for request in bench.sent(messages.VoteRequest)}
    assert voters == {messages.ReplicaKey(PEER, UUID(int=1)), messages.ReplicaKey(THIRD, UUID(int=2))}


# Arbitrary messages

directories = st.none() | st.uuids()
voter_ids = st.sampled_from([ME, PEER, THIRD, STRANGER, -1]) | INT32
keys = st.builds(messages.ReplicaKey, voter_ids, directories)
epochs = st.integers(EPOCH - 1, EPOCH + 3) | INT32
offsets = st.integers(0, 6) | INT64
clusters = st.just(CLUSTER)
requests = st.one_of(
    st.builds(messages.VoteRequest, clusters, epochs, keys, keys, epochs, offsets, st.booleans()),
    st.builds(messages.BeginQuorumEpochRequest, clusters, voter_ids, epochs, keys),
    st.builds(messages.EndQuorumEpochRequest, clusters, voter_ids, epochs, st.lists(keys, max_size=4).map(tuple)),
    st.builds(messages.FetchRequest, clusters, keys, epochs, offsets, epochs, st.none() | offsets, INT32, INT32),
)


@given(st.sampled_from(ROLES), st.lists(requests, min_size=1, max_size=6))
def test_no_request_stops_a_voter_or_leaves_nonsense_on_its_disk(role, requests):
    bench = Bench.in_role(role)
    epoch = EPOCH
    for connection, request in enumerate(requests):
        bench.ask(request, connection)
        assert not bench.core.halted, bench.effects
        state = bench.disk.quorum_state
        assert epoch <= state.epoch <= valid_messages.EPOCH_MAX
        epoch = state.epoch
        assert state.leader_id in (None, ME, PEER, THIRD)
        assert state.voted is None or state.voted.id in (ME, PEER, THIRD)
        bench.expire()
        epoch = bench.disk.quorum_state.epoch
    identity = messages.Identity(CLUSTER, messages.ReplicaKey(ME), (ME, PEER, THIRD))
    again = Core(identity, bench.disk, bench.disk.quorum_state, bench.core.random, bench.now)
    assert not any(isinstance(effect, Fatal) for effect in again.start(bench.now))
    assert not again.halted
