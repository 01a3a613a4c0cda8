"""Rules of brokers and partitions: each record is checked when its commit is first published.

    records     the rules of `checkers.cluster.replay`: a broker has one incarnation, and changes of a partition follow
                from one another; its leader is alive and in sync
    knowledge   a server that requests a change has applied the records that justify it: a broker that is unfenced, its
                own registration; a leader whose in-sync set grows, the last change of the partition and the
                registration of each broker that joins
    disks       a broker that restarts after an unclean shutdown is no eligible leader: it may have lost data
    identity    an incarnation of a broker registers under an epoch that no other incarnation received, and the epochs
                of a broker grow
    answers     an incarnation that asks again, although all possible voters knew its registration, is not refused
                because of another incarnation
    states      a server that has applied everything below the end of a batch has the state that a replay of the log
                gives, including the epochs of partitions.  The replay uses a model that shares no code with the node
                (`kraft.collected.state_model`)
    progress    after all faults are healed, every broker is unfenced, every partition that can have a leader has one,
                and the in-sync set grows until it contains every replica that serves

The model has no planted bugs, and it does not depend on snapshots, slices, or terms as a leader.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from checkers.cluster.replay import REFUSED_ITSELF, STAYS_ELIGIBLE, ClusterReplay
from harness.campaign.swarm.watch_calls import ANSWERED_TWICE, WENT_BACK
from system_under_test.kraft.collected.files import row_of
from system_under_test.kraft.collected.state_model import StateModel
from system_under_test.kraft.controller.brokers import is_online
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.partition_rules import directory_held
from system_under_test.kraft.records.metadata import NO_LEADER, CorruptRecord, PartitionRecord

if TYPE_CHECKING:
    from harness.campaign.swarm.node_voter import NodeVoter

CLOCK_RATE_MAX = 1.2
"""Maximum ratio of the rates of any two clocks of a storm."""


class CommittedBatch(NamedTuple):
    """A batch of the metadata log. end: offset after it. values: of its records; empty for a control batch."""

    base: int
    end: int
    epoch: int
    values: Sequence[bytes]


class _Decided(NamedTuple):
    """Decisions that a leader has appended.

    end: end of the log after the append
    applied: server -> offset below which it had applied everything
    """

    end: int
    epoch: int
    applied: Mapping[str, int]


class BrokerWatch:
    """The rules of brokers.

    violated: as `Watch.violated_by`
    met: called with an event and the id of its broker
    may_vote: names of the servers that may be the controller
    left_cleanly: takes a broker and an epoch; returns True if the broker ever started after a clean shutdown of the
        incarnation with this epoch
    """

    def __init__(
        self,
        violated: Callable[[str, NodeVoter, str], None],
        met: Callable[[str, int | None], None],
        left_cleanly: Callable[[int, int], bool] = lambda broker, epoch: True,
        may_vote: Collection[str] = (),
    ) -> None:
        self._violated = violated
        self._met = met
        self._replay = ClusterReplay(whole=True)
        self._judged = 0
        self._image = Image()
        self._model = StateModel()
        self._states: dict[int, int] = {}
        self._replays = True
        self._left_cleanly = left_cleanly
        self._applied: dict[str, int] = {}
        # broker epoch in an answer -> name of the broker that received it, and its incarnation
        self._given: dict[int, tuple[str, str]] = {}
        self._may_vote = may_vote
        self._known_s: dict[int, float] = {}  # offset of a registration -> time when all possible voters had applied it
        self._decided: deque[_Decided] = deque()
        self._changed_at: dict[str, int] = {}  # partition -> offset of its last record
        self.fences: Counter[int] = Counter()
        """Number of a broker -> number of times that it was fenced."""

    @property
    def image(self) -> Image:
        """Return the committed state."""
        return self._image

    def committed(self, server: NodeVoter, batches: Sequence[CommittedBatch]) -> None:
        """Check the batches that a server's new high watermark commits."""
        for batch in batches:
            applied = self._applied_when_decided(batch)
            lost_data: list[int] = []
            for offset, value in enumerate(batch.values, batch.base):
                self._record(server, offset, batch, value, applied, lost_data)
            self._replay.end_of_batch()
            self._look_at_eligible(server, lost_data, batch.end)
            if self._replays:
                self._states[batch.end] = self._model.state_hash
        found = self._replay.result.found
        for each in found[self._judged :]:
            self._violated(each.kind, server, each.words)
        self._judged = len(found)

    def decided(self, leader: NodeVoter, end: int, epoch: int) -> None:
        """Note which records every server had applied when a leader appended decisions up to `end`."""
        self._decided.append(_Decided(end, epoch, dict(self._applied)))

    def _applied_when_decided(self, batch: CommittedBatch) -> Mapping[str, int] | None:
        """Return the applied offsets at the time of the append; None if no append was reported."""
        found = next((each for each in self._decided if each.epoch == batch.epoch and each.end >= batch.end), None)
        while self._decided and self._decided[0].end <= batch.end and self._decided[0].epoch <= batch.epoch:
            self._decided.popleft()
        return None if found is None else found.applied

    def _record(
        self,
        server: NodeVoter,
        offset: int,
        batch: CommittedBatch,
        value: bytes,
        applied: Mapping[str, int] | None,
        lost_data: list[int],
    ) -> None:
        """Check one record.  lost_data: collects the brokers that have restarted and may have lost data."""
        if (row := row_of(value, offset, batch.epoch, batch.base)) is None:
            self._replay_value(server, offset, value)
            return
        kind, about, fields = row[3], row[4], json.loads(row[5])
        self._replay.record(offset, kind, about, fields, batch.base)
        before = self._partition(about)
        if applied is not None:
            for who, due in self._rests_on(kind, about, fields, before):
                if (known := applied.get(who, 0)) <= due:
                    what = f"offset {offset} ({kind}, {about}) requires that {who} has applied offset {due}; "
                    self._violated("a request ahead of its metadata", server, f"{what}it had applied {known}")
        if kind == "register broker" and (number := self._came_back_unclean(about, fields)):
            lost_data.append(number)
        self._replay_value(server, offset, value)
        if kind == "change broker" and fields.get("fenced") == 1:
            self.fences[int(about.rpartition(" ")[2])] += 1
        if kind in ("partition", "change partition"):
            self._changed_at[about] = offset
        for moment, broker in _moments(kind, about, fields, before):
            self._met(moment, broker)

    def _replay_value(self, server: NodeVoter, offset: int, value: bytes) -> None:
        if self._replays:
            try:
                self._image.replay(value)
                self._model.replay(value)
            except (CorruptRecord, ValueError, IndexError, KeyError) as problem:
                self._replays = False
                self._violated("a record that cannot be replayed", server, f"offset {offset}: {problem}")

    def _rests_on(
        self, kind: str, about: str, fields: dict[str, Any], before: PartitionRecord | None
    ) -> Iterator[tuple[str, int]]:
        """Yield (server, offset of a record that the server had to know to request this one)."""
        if kind == "unfence broker" or (kind == "change broker" and fields.get("fenced") == -1):
            yield f"n{about.rpartition(' ')[2]}", fields["epoch"]
        # Only the leader adds replicas to its in-sync set.
        if kind != "change partition" or before is None or "leader" in fields or before.leader == NO_LEADER:
            return
        joined = set(fields.get("isr") or ()) - {*before.isr, before.leader}
        leader, known = f"n{before.leader}", self._image.brokers
        if joined:
            yield leader, self._changed_at.get(about, -1)
        for member in sorted(joined & known.keys()):
            yield leader, known[member].broker_epoch

    def _came_back_unclean(self, about: str, fields: dict[str, Any]) -> int | None:
        """Return the broker that the record registers again; None if its previous incarnation may have shut down
        cleanly.
        """
        number = int(about.rpartition(" ")[2])
        former = self._image.brokers.get(number)
        if former is not None and former.incarnation_id == UUID(fields["incarnation"]):
            return None
        return None if former is not None and self._left_cleanly(number, former.broker_epoch) else number

    def _look_at_eligible(self, server: NodeVoter, lost_data: Collection[int], end: int) -> None:
        if not lost_data or not self._replays:
            return
        for where, _, partition in self._partitions():
            if stays := set(partition.elr or ()) & set(lost_data):
                what = f"brokers {sorted(stays)} restarted after an unclean shutdown before offset {end}, but are "
                self._violated(STAYS_ELIGIBLE, server, f"{what}still in the ELR of {where}")

    def _partitions(self) -> Iterator[tuple[str, str, PartitionRecord]]:
        """Yield (name in words, name in rows, state) of each partition."""
        for topic in self._image.topics.values():
            for number, partition in topic.partitions.items():
                yield f"partition {number} of {topic.name}", f"{topic.id}/{number}", partition

    def _partition(self, about: str) -> PartitionRecord | None:
        topic_id, _, number = about.partition("/")
        if not number:
            return None
        topic = self._image.topic_of(UUID(topic_id))
        return None if topic is None else topic.partitions.get(int(number))

    def applied(self, server: NodeVoter, offset: int, state_hash: int | None, now_s: float = 0.0) -> None:
        """Check the hash of a server's state after it has applied everything below an offset."""
        self._applied[server.name] = max(offset, self._applied.get(server.name, 0))
        if server.name in self._may_vote:
            unknown = [b.broker_epoch for b in self._image.brokers.values() if b.broker_epoch not in self._known_s]
            known = min(self._applied.get(name, 0) for name in self._may_vote) if unknown else 0
            self._known_s.update((epoch, now_s) for epoch in unknown if epoch < known)
        due = self._states.get(offset)
        if due is not None and state_hash is not None and due != state_hash:
            self._violated("a state that no replay leads to", server, f"{server.name} at {offset}")

    def reported(self, server: NodeVoter, words: str, now_s: float, epoch: int = 0) -> None:
        """Check a server's report about its broker (`checkers.base.columns`).

        epoch: broker epoch; -1 if the broker dropped an answer that came too late
        """
        word, _, more = words.partition(" ")
        if word == "registered" and epoch >= 0:
            mine = (server.name, more.rpartition(" ")[2])
            given = self._given.setdefault(epoch, mine)
            later = max((each for each, (name, _) in self._given.items() if name == server.name), default=epoch)
            if given != mine:
                self._violated(ANSWERED_TWICE, server, f"broker epoch {epoch}, by {given[0]} and {server.name}")
            elif later > epoch:
                self._violated(WENT_BACK, server, f"broker epoch {epoch} of {server.name}, after {later}")
        if word != "refused":
            return
        ago_ms, _, incarnation = more.partition(" ")
        held = self._image.brokers.get(int(server.name.removeprefix("n")))
        if held is None or held.incarnation_id != UUID(incarnation):
            return
        known_s = self._known_s.get(held.broker_epoch)
        if known_s is not None and known_s < now_s - CLOCK_RATE_MAX * int(ago_ms) / 1000:
            what = f"broker {held.broker_id} has epoch {held.broker_epoch}, known to all since {known_s:.3f} s"
            self._violated(REFUSED_ITSELF, server, f"{what}; this incarnation is refused")

    def unsettled(self, brokers: Collection[int]) -> str:
        """Return the reason why one of these running brokers does not serve; "" if all serve."""
        known = self._image.brokers
        for number in brokers:
            if number not in known:
                return f"broker {number} is not registered"
            if known[number].fenced or known[number].in_controlled_shutdown:
                return f"broker {number} is {'fenced' if known[number].fenced else 'shutting down'}"
        for where, _, partition in self._partitions():
            if partition.leader == NO_LEADER and _can_have_a_leader(self._image, partition):
                return f"{where} has no leader: {partition}"
        return ""

    def out_of_sync(self, were_in_sync: set[str]) -> str:
        """Return a partition whose replicas serve but have never all been in sync at the same time; "" if there is
        none.

        were_in_sync: collects the partitions whose replicas have been, because later reassignments may change them
        """
        found = ""
        for where, about, partition in self._partitions():
            missing = sorted({each for each in partition.replicas if self._serves(each)} - set(partition.isr))
            if not missing:
                were_in_sync.add(about)
            elif partition.leader != NO_LEADER and about not in were_in_sync:
                found = f"{missing} serve but are not in sync: {where}"
        return found

    def _serves(self, broker: int) -> bool:
        known = self._image.brokers.get(broker)
        return known is not None and not known.fenced and not known.in_controlled_shutdown

    def leads_partitions(self) -> list[int]:
        """Return the brokers that lead a partition."""
        return sorted({partition.leader for _, _, partition in self._partitions()} - {NO_LEADER})


def _can_have_a_leader(image: Image, partition: PartitionRecord) -> bool:
    """Return True if a partition can have a leader while every broker runs.  If it cannot, every replica with the
    complete log may have lost data, and an operator must decide.

    A broker whose disk was wiped has another directory than its former replica, and cannot lead the partition any more.
    The last known leader may lead if the feature level permits it (KIP-966).
    """
    last_known = (partition.last_known_elr or ()) if image.keeps_elr else ()
    may_lead = partition.isr or partition.elr or (last_known if len(last_known) == 1 else ())
    return any(is_online(image, each, directory_held(partition, each)) for each in may_lead)


def _moments(
    kind: str, about: str, fields: dict[str, Any], before: PartitionRecord | None
) -> Iterator[tuple[str, int | None]]:
    """Return the events that a record causes (`scenario.BROKER_MOMENTS`), with the broker."""
    broker = int(about.rpartition(" ")[2]) if about.startswith("broker ") else None
    if kind == "register broker":
        yield "registered", broker
    elif kind == "change broker":
        if fields.get("fenced"):
            yield ("fenced" if fields["fenced"] == 1 else "unfenced"), broker
        if fields.get("leaving"):
            yield "leaving", broker
    elif kind in ("topic", "remove topic"):
        yield ("topic" if kind == "topic" else "topic-removed"), None
    elif kind == "change partition" and before is not None:
        leader = fields.get("leader", before.leader)
        if leader == NO_LEADER:
            yield "partition-lost", None if before.leader == NO_LEADER else before.leader
            return
        if leader != before.leader:
            yield "partition-led", leader
        elif "isr" in fields:
            yield "in-sync", leader
        if fields.get("adding"):
            yield "reassigning", leader
        elif before.adding and "adding" in fields:
            yield "reassigned", leader
