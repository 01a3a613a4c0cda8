"""Requests and arbitrary messages of peers: which are refused, with which error, and what a vote binds.

What a peer says is checked before it touches memory or disk: a voter neither dies of it nor persists nonsense.
"""

from dataclasses import replace
from itertools import product
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raft_voter import CLUSTER, EPOCH, ME, PEER, ROLES, THIRD, Bench, begin, end, fetch_of, vote

from system_under_test.kraft.raft import messages, valid_messages
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.effects import Fatal, Persist, Send, Truncate
from system_under_test.kraft.raft.valid_messages import EPOCH_MAX, EPOCHS_AT_ONCE_MAX, EPOCHS_PER_S
from system_under_test.kraft.raft.voters import StaticVoters


@pytest.mark.parametrize("role", ROLES)
def test_a_foreign_cluster_gets_104_and_learns_nothing(role):
    bench = Bench.in_role(role)
    for request in (vote(9, cluster="other"), begin(9, cluster="other"), end(9, cluster="other")):
        response = bench.ask(request)
        assert (response.error, response.leader_epoch, response.leader_id) == (
            messages.Error.INCONSISTENT_CLUSTER_ID,
            0,
            None,
        )
    fetch = bench.fetch(offset=0, last_epoch=0)._replace(cluster_id="other")
    assert bench.ask(fetch).error == messages.Error.INCONSISTENT_CLUSTER_ID
    assert (bench.core.role, bench.core.epoch) == (role, EPOCH), "nor does it change anything"


@pytest.mark.parametrize("role", ROLES)
def test_an_old_epoch_is_fenced(role):
    bench = Bench.in_role(role)
    for request in (vote(4, last=(3, 9)), begin(4), end(4), bench.fetch(offset=4, last_epoch=4, epoch=4)):
        assert bench.ask(request).error == messages.Error.FENCED_LEADER_EPOCH
    assert bench.core.epoch == EPOCH


@pytest.mark.parametrize("role", ROLES)
def test_a_fetch_of_a_later_epoch_is_unknown_and_changes_nothing(role):
    bench = Bench.in_role(role)
    response = bench.ask(bench.fetch(offset=4, last_epoch=4, epoch=6))
    assert (response.error, response.leader_epoch) == (messages.Error.UNKNOWN_LEADER_EPOCH, EPOCH)
    assert bench.core.role == role


@pytest.mark.parametrize("role", [role for role in ROLES if role != "leader"])
def test_only_a_leader_answers_fetches(role):
    bench = Bench.in_role(role)
    response = bench.ask(bench.fetch(offset=4, last_epoch=4))
    assert (response.error, response.leader_id) == (messages.Error.NOT_LEADER_OR_FOLLOWER, bench.core.leader_id)


@pytest.mark.parametrize(("role", "request_"), list(product(ROLES, [vote(6), vote(6, pre_vote=True)])))
def test_a_higher_epoch_of_a_vote_is_always_entered(role, request_):
    bench = Bench.in_role(role)
    response = bench.ask(request_)
    assert (response.error, response.leader_epoch) == (messages.Error.NONE, 6)
    assert bench.core.epoch == 6
    assert bench.disk.quorum_state.epoch == 6
    assert (bench.core.role, bench.core.leader_id) == ("unattached", None)


@pytest.mark.parametrize(("role", "request_"), list(product(ROLES, [begin(6, THIRD), end(6, THIRD)])))
def test_a_leader_is_believed_when_it_confirms_at_its_own_address(role, request_):
    bench = Bench.in_role(role)
    response = bench.ask(request_)
    assert (response.error, response.leader_epoch) == (messages.Error.NONE, EPOCH)
    assert (bench.core.epoch, bench.all(Persist)) == (EPOCH, [])
    (send,) = [send for send in bench.all(Send) if isinstance(send.request, messages.FetchRequest)]
    assert (send.peer, send.request.current_leader_epoch) == (THIRD, 6)
    bench.respond(
        THIRD,
        send.request,
        messages.FetchResponse(
            messages.Error.NONE, THIRD, 6, batches=(messages.Batch(bench.disk.end_offset, 6, 1, b"x"),)
        ),
    )
    assert (bench.core.role, bench.core.leader_id, bench.disk.quorum_state.epoch) == ("follower", THIRD, 6)
    assert bench.disk.last_epoch == 6, "the same answer continues the log"


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("answer", [None, messages.FetchResponse(messages.Error.UNKNOWN_LEADER_EPOCH, None, EPOCH)])
def test_a_leader_that_does_not_confirm_is_forgotten(role, answer):
    bench = Bench.in_role(role)
    bench.ask(begin(6, THIRD))
    (send,) = [send for send in bench.all(Send) if isinstance(send.request, messages.FetchRequest)]
    bench.respond(THIRD, send.request, answer)
    assert (bench.core.role, bench.core.epoch) == (role, EPOCH)
    assert not [
        send for send in bench.all(Send) if isinstance(send.request, messages.FetchRequest) and send.peer == THIRD
    ]


@pytest.mark.parametrize("role", ROLES)
def test_a_thousand_forged_frames_do_not_use_up_the_epochs(role):
    """2**31 epochs are the end of every election: 384 frames once led there."""
    bench = Bench.in_role(role)
    for number in range(1, 1000):
        for request in (
            begin(2**31 - 2, PEER),
            end(2**31 - 2, THIRD),
            vote(EPOCH + number * 2**20),
            vote(bench.core.epoch + 100),
        ):
            bench.ask(request, connection=number)
    assert bench.core.epoch <= EPOCH + EPOCHS_AT_ONCE_MAX
    bench.now += 60
    while not bench.ask(vote(bench.core.epoch + 100)).error:
        pass
    assert bench.core.epoch <= EPOCH + EPOCHS_AT_ONCE_MAX + 60 * EPOCHS_PER_S


def test_two_leaders_named_by_forged_requests_stop_no_voter():
    """One voter hears that PEER leads, another one that THIRD does.  Both claims are false, and no voter stops."""
    bench = Bench.in_role("unattached")
    bench.ask(begin(6, PEER))
    bench.ask(begin(6, THIRD))
    asked = [send.peer for send in bench.all(Send)]
    assert asked == [THIRD]
    bench.respond(THIRD, bench.all(Send)[0].request, messages.FetchResponse(messages.Error.NONE, THIRD, 6))
    assert (bench.core.role, bench.core.leader_id) == ("follower", THIRD)
    assert bench.ask(begin(6, PEER)).error == messages.Error.INVALID_REQUEST
    assert not bench.core.halted


def test_at_the_end_of_all_epochs_a_voter_stops_with_a_sentence():
    bench = Bench(messages.QuorumState(EPOCH_MAX, None, messages.ReplicaKey(PEER)))
    bench.expire()
    bench.grant(PEER)
    (fatal,) = bench.all(Fatal)
    assert fatal.reason.startswith(f"epoch {EPOCH_MAX} is the last one that Kafka's protocol can hold: ")


def test_a_wrong_voter_key_is_noticed_after_the_epoch_was_entered():
    bench = Bench.in_role("unattached")
    assert bench.ask(vote(6, voter=THIRD)).error == messages.Error.INVALID_VOTER_KEY
    assert bench.core.epoch == 6
    assert bench.disk.quorum_state.voted is None


@pytest.mark.parametrize(
    "request_",
    [
        # a candidate of epoch 5 raised the voter's epoch to 5: its log cannot contain epoch 5
        vote(EPOCH, last=(5, 9)),
        vote(EPOCH, last=(6, 9), pre_vote=True),
        vote(EPOCH, last=(-1, 9)),
        vote(EPOCH, last=(4, -1)),
        vote(EPOCH, candidate=ME),
        begin(EPOCH, leader=ME),
        end(EPOCH, ME),
        end(EPOCH, PEER, THIRD, THIRD),
    ],
)
def test_impossible_requests_are_invalid(request_):
    bench = Bench.in_role("unattached")
    assert bench.ask(request_).error == messages.Error.INVALID_REQUEST


def test_a_pre_vote_may_hold_entries_of_its_own_epoch():
    assert Bench.in_role("unattached").ask(vote(EPOCH, last=(5, 9), pre_vote=True)).granted


@pytest.mark.parametrize(
    ("last", "granted"), [((4, 4), True), ((4, 5), True), ((4, 3), False), ((3, 99), False), ((2, 4), False)]
)
def test_a_vote_goes_to_logs_at_least_as_complete(last, granted):
    """Last epoch first, then length: a long log of an old epoch is the worse one."""
    bench = Bench.in_role("unattached")
    assert bench.ask(vote(last=last)).granted == granted
    assert bench.ask(vote(last=last, candidate=THIRD, pre_vote=True)).granted == granted


def test_a_vote_is_durable_before_it_is_sent():
    bench = Bench.in_role("unattached")
    bench.ask(vote())
    assert [type(effect).__name__ for effect in bench.effects] == ["Persist", "Reply"]
    assert bench.all(Persist) == [Persist(messages.QuorumState(EPOCH, None, messages.ReplicaKey(PEER)), voted_now=True)]


def test_a_vote_sent_again_is_no_second_vote():
    bench = Bench.in_role("unattached")
    bench.ask(vote())
    assert bench.ask(vote()).granted
    assert bench.all(Persist) == []
    assert not bench.ask(vote(candidate=THIRD)).granted


def test_pre_votes_bind_no_voter():
    bench = Bench.in_role("unattached")
    assert bench.ask(vote(pre_vote=True)).granted
    assert bench.ask(vote(candidate=THIRD, pre_vote=True)).granted
    assert bench.all(Persist) == []
    assert bench.disk.quorum_state == messages.QuorumState(EPOCH)


def test_a_vote_postpones_the_own_campaign():
    bench = Bench.in_role("unattached")
    bench.now += 0.9
    bench.ask(vote())
    assert bench.core.deadline >= bench.now + bench.timing.election_timeout_s


@pytest.mark.parametrize("role", ["leader", "follower", "prospective", "resigned"])
def test_a_request_that_contradicts_the_known_leader_is_only_refused(role):
    """A request may come from any program; a response comes from the address of a voter."""
    bench = Bench.in_role(role)
    for request in (begin(EPOCH, leader=THIRD), end(EPOCH, THIRD)):
        assert bench.ask(request).error == messages.Error.INVALID_REQUEST
        assert (bench.core.role, bench.all(Fatal), bench.all(Persist)) == (role, [], [])


def test_a_prospective_goes_back_to_the_leader_that_speaks_up():
    bench = Bench.in_role("prospective")
    assert bench.ask(begin()).error == messages.Error.NONE
    assert (bench.core.role, bench.core.leader_id) == ("follower", PEER)


@pytest.mark.parametrize(("role", "leader"), [("leader", ME), ("follower", PEER)])
def test_two_leaders_in_one_epoch_stop_the_voter(role, leader):
    bench = Bench.in_role(role)
    bench.respond(PEER, fetch_of(bench), messages.FetchResponse(messages.Error.NOT_LEADER_OR_FOLLOWER, THIRD, EPOCH))
    assert bench.all(Fatal) == [Fatal(f"epoch {EPOCH} has two leaders: n{leader} and n{THIRD}")]
    assert bench.core.halted
    assert bench.core.tick(bench.now + 99) == []
    assert bench.core.deadline == float("inf")


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
