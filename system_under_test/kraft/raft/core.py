"""The consensus core: messages, ticks and proposals in; ordered effects out.

Theory of operation.  The core performs no I/O and reads no clock.  Each method handles one event: it changes the
voter's memory and returns effects.  The caller must carry out all of these effects, in order, before the next call
(`effects.py` states what each effect guarantees).  `deadline` is the time at which `tick` is needed next.  A late tick
is safe, but slow.

Obligations of the caller besides the effects:

* `on_flushed` is called once for every `BeginFlush`.
* `on_response` is called exactly once for every `Send`: with the response, or with None if the request timed out or the
  connection broke.  After a time-out the caller closes the connection, so that a late response is never taken for the
  response to the next request.
* On one connection, a peer's requests are delivered in the order in which the peer sent them, and the peer sends its
  next Fetch only after it has received the answer to its last Fetch.  The proof of reads depends on this (`states.py`).
* The number of a connection is never reused.  `on_disconnect` reports that a connection has ended.

`Fatal` is the last effect of a core: every later call returns no effects.

The modules, the innermost first: `voters` (sets of voters, majorities), `decisions` (rules on which safety depends),
`states` (transitions, reads), `valid_messages`, `voter_memory` (a voter's memory and its methods), `election`,
`leadership`, `changes` (of the voters), `replication`, and this dispatcher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial

from system_under_test.kraft.raft import changes, election, leadership, messages, replication, states, valid_messages
from system_under_test.kraft.raft.changes import VoterChange
from system_under_test.kraft.raft.decisions import may_acknowledge
from system_under_test.kraft.raft.effects import CoreEffect, Fatal
from system_under_test.kraft.raft.voter_memory import Halt, Voter


class Core(Voter):
    """One replica of a KRaft quorum: a voter or an observer.  Callers may read its attributes, but may set only
    `seeks_office`.

    Raises RuntimeError if the log does not end where the effects of the earlier calls leave it.
    """

    def start(self, now: float) -> list[CoreEffect]:
        """Start the core.  This must be the first call."""
        return self._step(now, partial(_start, self, now))

    def tick(self, now: float) -> list[CoreEffect]:
        return self._step(now, partial(_tick, self, now))

    def on_request(self, now: float, token: int, connection: int, request: messages.RaftRequest) -> list[CoreEffect]:
        """Handle a request.  The answer is a Reply with this token, from this call or, for a Fetch that waits for
        records, from a later one.
        """
        return self._step(now, partial(_on_request, self, now, token, connection, request))

    def on_disconnect(self, now: float, connection: int) -> list[CoreEffect]:
        return self._step(now, partial(_on_disconnect, self, connection))

    def on_response(
        self, now: float, peer: int, request: messages.RaftRequest, response: messages.RaftResponse | None
    ) -> list[CoreEffect]:
        """Handle a response; None if no response will come."""
        return self._step(now, partial(_on_response, self, now, peer, request, response))

    def on_flushed(self, now: float, log_end_offset: int) -> list[CoreEffect]:
        """Handle the end of a flush that `BeginFlush` started.

        log_end_offset: log end offset when the flush began, regardless of later truncations and appends
        """
        return self._step(now, partial(_on_flushed, self, now, log_end_offset))

    def propose(
        self, now: float, token: int, bodies: Sequence[tuple[Hashable, int]], expected_epoch: int | None = None
    ) -> list[CoreEffect]:
        """Append one batch per (body, record count), all or none.  The effects contain Accepted before the Append, or
        NotAccepted.
        """
        if not bodies or any(count < 1 for _, count in bodies):
            raise ValueError("a proposal needs at least one batch, and every batch at least one record")
        return self._step(now, partial(leadership.propose, self, now, token, bodies, expected_epoch))

    def read(self, now: float, token: int) -> list[CoreEffect]:
        """Request a linearizable read.  ReadReady or NotAccepted follows, in this call or a later one.  Neither follows
        while the voter leads but no majority answers.
        """
        return self._step(now, partial(leadership.read, self, token))

    def change_voters(self, now: float, token: int, change: VoterChange) -> list[CoreEffect]:
        """Request a change of the voters.  VotersChangeDone follows: at once if the change is refused, otherwise once
        it is committed or this voter ceases to lead.
        """
        return self._step(now, partial(changes.change_voters, self, now, token, change))

    def shutdown(self, now: float) -> list[CoreEffect]:
        """Stop campaigning; a leader resigns and announces that to the others."""
        return self._step(now, partial(_shutdown, self, now))

    def _step(self, now: float, action: Callable[[], None]) -> list[CoreEffect]:
        if self.halted:
            return []
        self.effects = []
        if self.stale_history:
            self.load_voters()
            if self.history.may_change:
                self.report_voters()
        if (self.log.end_offset, self.log.last_epoch) != (self.end_offset, self.end_epoch):
            raise RuntimeError(
                f"voter {self.me}: the log ends at offset {self.log.end_offset} of epoch {self.log.last_epoch}, but "
                f"the effects so far should have left it at {self.end_offset} of epoch {self.end_epoch}; "
                "carry out every effect before the next call"
            )
        try:
            action()
            changes.settle(self, now)
            self.deadline = min(_send_wanted(self, now), _timer(self))
        except Halt as halt:
            self.halted, self.deadline = True, math.inf
            self.emit(Fatal(str(halt)))
        return self.effects


# Start and end


def _start(voter: Voter, now: float) -> None:
    """Enter the state that the files record.  Flush the log first, because the entries that recovery found may not be
    durable.
    """
    file = voter.persisted
    if voter.end_epoch > file.epoch:  # quorum-state was lost: nothing is known of this epoch, including our vote
        file = messages.QuorumState(voter.end_epoch)
        voter.persist(file)
    voter.flush()
    deadline = voter.election_timeout(now)
    if file.leader_id == voter.me:  # it may have assigned offsets in this epoch: never lead the epoch again
        voter.state = states.Resigned(file.epoch, deadline, (), set(voter.others))
    elif file.leader_id is not None:
        voter.state = states.Follower(file.epoch, file.leader_id, voter.fetch_timeout(now))
    elif file.voted is not None and voter.names_me(file.voted) and not voter.observes:
        voter.state = states.Candidate(file.epoch, deadline, states.Votes({voter.me}))
    else:
        voter.state = states.Unattached(file.epoch, deadline)
    voter.announce()
    voter.report_voters()
    if voter.alone:
        _elect_alone(voter, now)


def _elect_alone(voter: Voter, now: float) -> None:
    if isinstance(voter.state, states.Candidate):
        election.become_leader(voter, now)
    else:
        if isinstance(voter.state, states.Resigned | states.Follower):
            election.become_unattached(voter, now, voter.epoch + 1)
        election.become_prospective(voter, now)


def _shutdown(voter: Voter, now: float) -> None:
    voter.shutting_down = True
    if isinstance(voter.state, states.Leader):
        election.resign(voter, now)


# Time


def _timer(voter: Voter) -> float:
    """Return the time of the state's next action.  `_send_wanted` returns the time of the next message."""
    match voter.state:
        case states.Leader() as leader:
            first = min(leader.news_at, leader.mark_at, leader.quorum_deadline)
            for waiting in leader.parked:  # runs after every event: a comparison takes a third of the time of min()
                if waiting.deadline < first:
                    first = waiting.deadline
            return first
        case _ if voter.shutting_down:
            return math.inf
        case states.Follower(fetch_deadline=deadline):
            return deadline
        case states.Unattached() | states.Prospective() | states.Candidate() | states.Resigned():
            return voter.state.election_deadline


def _tick(voter: Voter, now: float) -> None:
    while now >= _timer(voter):
        match voter.state:
            case states.Leader() as leader if now >= leader.quorum_deadline:
                election.resign(voter, now)
            case states.Leader() as leader:
                leader.news_at = math.inf
                leadership.answer_parked(voter, now, leader)
            case states.Unattached() | states.Follower() if voter.observes and not replication.must_campaign(voter):
                replication.look_for_leader(voter, now)
            case states.Prospective():
                election.give_up(voter, now)
            case states.Follower() | states.Unattached() if not voter.seeks_office:
                election.let_others_campaign(voter, now)
            case states.Resigned():
                election.become_unattached(voter, now, voter.epoch + 1)
            case states.Unattached() | states.Candidate() | states.Follower():
                voter.asked += voter.observes
                election.become_prospective(voter, now)


# The disk


def _on_flushed(voter: Voter, now: float, log_end_offset: int) -> None:
    voter.flushed(log_end_offset)
    if isinstance(voter.state, states.Leader):
        leadership.commit(voter, voter.state)
        leadership.answer_parked(voter, now, voter.state)


# Requests and responses


def _on_request(voter: Voter, now: float, token: int, connection: int, request: messages.RaftRequest) -> None:
    if request.cluster_id != voter.identity.cluster_id:
        # A voter of another cluster must not learn this epoch: it could adopt the epoch.
        voter.reply(token, messages.empty_answer(request, messages.Error.INCONSISTENT_CLUSTER_ID, None, 0))
        return
    error = valid_messages.request_error(voter.trusted, request)
    if error == messages.Error.NONE and isinstance(request, messages.VoteRequest):
        granted = voter.epochs_by_request.grants(now, request.epoch - voter.epoch)
        error = messages.Error.NONE if granted else messages.Error.INVALID_REQUEST
    if error != messages.Error.NONE:
        voter.reply(token, messages.empty_answer(request, error, voter.leader_id, voter.epoch))
        return
    match request:
        case messages.FetchRequest():
            replication.on_fetch_request(voter, now, token, connection, request)
        case messages.VoteRequest():
            voter.reply(token, election.on_vote_request(voter, now, request))
        case messages.BeginQuorumEpochRequest():
            voter.reply(token, leadership.on_begin_request(voter, now, request))
        case messages.EndQuorumEpochRequest():
            voter.reply(token, leadership.on_end_request(voter, now, request))
        case messages.FetchSnapshotRequest():
            replication.on_fetch_snapshot_request(voter, now, token, request)


def _on_disconnect(voter: Voter, connection: int) -> None:
    if isinstance(voter.state, states.Leader):
        voter.state.reads.forget(connection)
        voter.state.parked = [parked for parked in voter.state.parked if parked.connection != connection]


def _on_response(
    voter: Voter, now: float, peer: int, request: messages.RaftRequest, response: messages.RaftResponse | None
) -> None:
    voter.in_flight.discard((peer, type(request)))
    if isinstance(request, messages.FetchRequest):
        voter.named_leaders.pop(peer, None)
    if response is None or not valid_messages.is_sane(voter.trusted, response):
        voter.back_off(peer, now)
    elif _lacks_pre_vote(request, response) and isinstance(voter.state, states.Prospective):
        election.become_candidate(voter, now)
    elif _is_usable(voter, now, peer, request, response):
        match request, response:
            case messages.FetchRequest(), messages.FetchResponse():
                replication.on_fetch_response(voter, now, peer, request, response)
            case messages.VoteRequest(), messages.VoteResponse():
                election.on_vote_response(voter, now, peer, request, response)
            case messages.EndQuorumEpochRequest(), messages.EpochResponse():
                leadership.heard_of_resignation(voter, request.epoch, peer)
            case messages.FetchSnapshotRequest(), messages.FetchSnapshotResponse():
                replication.on_response(voter, now, peer, request, response)


def _lacks_pre_vote(request: messages.RaftRequest, response: messages.RaftResponse) -> bool:
    """Return whether the peer does not support pre-votes, so that the candidate skips them (KIP-996, compatibility)."""
    return (
        isinstance(request, messages.VoteRequest)
        and request.pre_vote
        and response.error == messages.Error.UNSUPPORTED_VERSION
    )


def _is_usable(
    voter: Voter, now: float, peer: int, request: messages.RaftRequest, response: messages.RaftResponse
) -> bool:
    """Return whether a response answers a request of the current epoch, without an error.  First adopt the epoch and
    the leader that the response names.
    """
    if response.leader_epoch < voter.epoch or response.error == messages.Error.UNKNOWN_LEADER_EPOCH:
        voter.back_off(peer, now)  # the peer lags behind
        return False
    before = voter.epoch
    election.recognise(voter, now, response.leader_id, response.leader_epoch)
    asked_in = before
    if isinstance(request, messages.FetchRequest | messages.FetchSnapshotRequest):
        asked_in = request.current_leader_epoch
    if voter.epoch != asked_in:
        return False  # the answer belongs to a request of an earlier epoch
    if response.error != messages.Error.NONE and response.error not in _OF_A_SNAPSHOT:
        voter.back_off(peer, now)
        return False
    return True


_OF_A_SNAPSHOT = frozenset({messages.Error.SNAPSHOT_NOT_FOUND, messages.Error.POSITION_OUT_OF_RANGE})
"""Errors about one requested snapshot: the download handles them."""


# Sending


def _send_wanted(voter: Voter, now: float) -> float:
    """Send all due messages, and return the time at which the next message is due.  At most one request of each kind is
    in flight to a peer.  Called after every event.
    """
    if voter.named_leaders and _may_fetch(voter):
        for peer, epoch in voter.named_leaders.items():
            if (peer, messages.FetchRequest) not in voter.in_flight:
                voter.send(peer, replication.fetch_request(voter, epoch))
    if isinstance(voter.state, states.Leader):
        return leadership.announce_epoch(voter, now, voter.state)
    next_due = math.inf
    kind = _kind(voter)
    for peer in _peers_to_ask(voter, kind):
        if (peer, kind) in voter.in_flight:
            continue
        due = voter.retry_at.get(peer, -math.inf)
        if now < due:
            next_due = min(next_due, due)
        else:
            voter.send(peer, _request_for(voter, peer))
    return next_due


def _peers_to_ask(voter: Voter, kind: type[messages.RaftRequest] | None) -> Iterable[int]:
    """Return the peers to which this voter, if it is no leader, sends requests."""
    match voter.state:
        case states.Follower(leader_id=leader_id):
            return (leader_id,) if kind is not messages.FetchRequest or _may_fetch(voter) else ()
        case states.Prospective() | states.Candidate():
            return [peer for peer in voter.others if not voter.state.votes.answered(peer)]
        case states.Resigned(untold=untold):
            return sorted(untold)
        case _:
            return ()


def _may_fetch(voter: Voter) -> bool:
    return may_acknowledge(voter.flushed_end, voter.end_offset, voter.bugs)


def _kind(voter: Voter) -> type[messages.RaftRequest] | None:
    """Return the kind of request that this voter, if it is no leader, sends to its peers."""
    if isinstance(voter.state, states.Follower) and voter.state.download is not None:
        return messages.FetchSnapshotRequest
    return _KIND[voter.role]


_KIND: dict[states.Role, type[messages.RaftRequest] | None] = {
    states.Role.UNATTACHED: None,
    states.Role.PROSPECTIVE: messages.VoteRequest,
    states.Role.CANDIDATE: messages.VoteRequest,
    states.Role.FOLLOWER: messages.FetchRequest,
    states.Role.RESIGNED: messages.EndQuorumEpochRequest,
}


def _request_for(voter: Voter, peer: int) -> messages.RaftRequest:
    match voter.state:
        case states.Follower(download=download):
            return replication.request(voter, download) if download else replication.fetch_request(voter, voter.epoch)
        case states.Resigned() as resigned:
            return leadership.end_request(voter, resigned)
        case _:
            return election.vote_request(voter, peer)
