"""One voter on a bench: no network, its effects carried out at once, its answers in the test's hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from simulated_quorum.disk import Disk

from system_under_test.kraft.raft import messages
from system_under_test.kraft.raft.core import Core
from system_under_test.kraft.raft.effects import Append, BeginFlush, CoreEffect, Flush, Persist, Reply, Send, Truncate

CLUSTER = "bench"
ME, PEER, THIRD = 1, 2, 3
EPOCH = 5
LOG = ((2, 2), (4, 2))  # (epoch, records): ends at offset 4 of epoch 4

E = TypeVar("E")

VOTED = messages.QuorumState(EPOCH, None, messages.ReplicaKey(ME))
FILES = {  # role -> quorum-state of a voter that starts, and soon is in this role
    "unattached": messages.QuorumState(EPOCH),
    "prospective": messages.QuorumState(EPOCH, PEER),
    "candidate": VOTED,
    "leader": VOTED,
    "follower": messages.QuorumState(EPOCH, PEER),
    "resigned": messages.QuorumState(EPOCH, ME, messages.ReplicaKey(ME)),
}
ROLES = list(FILES)


def vote(epoch=EPOCH, *, candidate=PEER, last=(4, 4), pre_vote=False, cluster=CLUSTER, voter=ME):
    return messages.VoteRequest(
        cluster, epoch, messages.ReplicaKey(candidate), messages.ReplicaKey(voter), *last, pre_vote
    )


def begin(epoch=EPOCH, leader=PEER, *, cluster=CLUSTER, voter=ME):
    return messages.BeginQuorumEpochRequest(cluster, leader, epoch, messages.ReplicaKey(voter))


def end(epoch=EPOCH, leader=PEER, *preferred, cluster=CLUSTER):
    return messages.EndQuorumEpochRequest(cluster, leader, epoch, tuple(messages.ReplicaKey(id) for id in preferred))


class Bench:
    """Voter 1 of three, by default with a log of two batches of two records and epochs 2 and 4.

    slow_disk: a flush is done when the test says so; else at once."""

    def __init__(
        self,
        state: messages.QuorumState | None = None,
        log: Sequence[tuple[int, int]] = LOG,
        voters: tuple[int, ...] = (ME, PEER, THIRD),
        bugs: Sequence[str] = (),
        observer: bool = False,
        dynamic: bool = False,
        slow_disk: bool = False,
    ) -> None:
        self.disk = Disk()
        for number, (epoch, count) in enumerate(log):
            self.disk.append([messages.Batch(self.disk.end_offset, epoch, count, f"old{number}")])
        self.disk.flush()
        self.disk.quorum_state = state if state is not None else messages.QuorumState(EPOCH)
        self.now = 100.0
        self.timing = messages.Timing()
        identity = messages.Identity(
            CLUSTER, messages.ReplicaKey(ME), voters, self.timing, frozenset(bugs), observer=observer, dynamic=dynamic
        )
        self.core = Core(identity, self.disk, self.disk.quorum_state, Random(1), self.now)
        self.tokens = 0
        self.slow_disk = slow_disk
        # flushes in progress: (log end, function that makes them durable)
        self.flushes: list[tuple[int, Callable[[], None]]] = []
        self.effects = self._carry_out(self.core.start(self.now))

    @classmethod
    def in_role(cls, role: str, **kwargs) -> Bench:
        """Of epoch 5.  A follower and a prospective know leader 2; the follower has fetched from it."""
        bench = cls(FILES[role], **kwargs)
        if role == "prospective":
            bench.expire()
        for peer in bench.core.voters[1:] if role == "leader" else ():
            bench.grant(peer)
        assert role in (bench.core.role, "candidate"), "a candidate without others leads at once"
        return bench

    def expire(self) -> list[CoreEffect]:
        """Advance time until the voter wants to act."""
        self.now = max(self.now, self.core.deadline)
        return self._carry_out(self.core.tick(self.now))

    def wait(self, seconds: float) -> list[CoreEffect]:
        """Advance time, whether or not the voter wants to act."""
        self.now += seconds
        return self._carry_out(self.core.tick(self.now))

    def ask(self, request: messages.RaftRequest, connection: int = 1) -> messages.RaftResponse | None:
        """The answer, or None if it waits."""
        self.tokens += 1
        self._carry_out(self.core.on_request(self.now, self.tokens, connection, request))
        return next((reply.response for reply in self.all(Reply) if reply.token == self.tokens), None)

    def respond(
        self, peer: int, request: messages.RaftRequest, response: messages.RaftResponse | None
    ) -> list[CoreEffect]:
        return self._carry_out(self.core.on_response(self.now, peer, request, response))

    def grant(self, peer: int) -> None:
        """A peer answers our outstanding Vote request with yes."""
        if self.core.role in ("candidate", "prospective"):
            request = messages.VoteRequest(
                CLUSTER,
                self.core.epoch,
                messages.ReplicaKey(ME),
                messages.ReplicaKey(peer),
                0,
                0,
                self.core.role == "prospective",
            )
            self.respond(
                peer, request, messages.VoteResponse(messages.Error.NONE, None, request.epoch, True, request.pre_vote)
            )

    def do(self, effects: list[CoreEffect]) -> list[CoreEffect]:
        return self._carry_out(effects)

    def all(self, kind: type[E]) -> list[E]:
        """The effects of this kind in the last step."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def sent(self, kind: type[E]) -> list[E]:
        return [send.request for send in self.all(Send) if isinstance(send.request, kind)]

    def fetch(
        self, peer: int = PEER, *, offset: int, last_epoch: int, epoch: int | None = None, **fields
    ) -> messages.FetchRequest:
        """A Fetch as `peer` would send it."""
        values = {"high_watermark": None, "max_wait_ms": 500} | fields
        current = self.core.epoch if epoch is None else epoch
        return messages.FetchRequest(CLUSTER, messages.ReplicaKey(peer), current, offset, last_epoch, **values)

    def _carry_out(self, effects: list[CoreEffect]) -> list[CoreEffect]:
        self.effects = effects
        for effect in effects:
            match effect:
                case Persist(state=state):
                    self.disk.quorum_state = state
                case Append(batches=batches):
                    self.disk.append(batches)
                case BeginFlush():
                    self.flushes.append((self.disk.end_offset, self.disk.begin_flush()))
                case Flush():
                    self.disk.flush()
                case Truncate(end_offset=end):
                    self.disk.truncate(end)
        if not self.slow_disk:
            while self.flushes:
                self.effects = effects = [*effects, *self.end_flush()]
        return effects

    def end_flush(self) -> list[CoreEffect]:
        """The flush that goes on is done."""
        [(end, durable)], self.flushes = self.flushes, []
        durable()
        before, self.slow_disk = self.slow_disk, True
        effects = self._carry_out(self.core.on_flushed(self.now, end))
        self.slow_disk = before
        return effects


def fetch_of(bench):
    """The Fetch that this follower has on its way."""
    return bench.fetch(ME, offset=bench.disk.end_offset, last_epoch=bench.disk.last_epoch)


def leader_speaks(bench, **fields):
    return bench.respond(
        PEER, fetch_of(bench), messages.FetchResponse(messages.Error.NONE, PEER, bench.core.epoch, **fields)
    )
