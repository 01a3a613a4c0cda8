"""Requests: which are refused, with which error codes in which order, and what a vote binds."""

from itertools import product

import pytest
from raft_voter import EPOCH, ME, PEER, ROLES, THIRD, Bench, begin, end, fetch_of, vote

from system_under_test.kraft.raft import messages
from system_under_test.kraft.raft.effects import Fatal, Persist, Send
from system_under_test.kraft.raft.valid_messages import EPOCH_MAX, EPOCHS_AT_ONCE_MAX, EPOCHS_PER_S


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
