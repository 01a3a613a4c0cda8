"""Duties of the active controller, and when.  Pure: the node sets a timer and appends the records.

duties = Duties(image, now_s, settings)     when a node becomes the active controller
duties.next_due_s(image)                    when `perform` has something to do
duties.perform(image, now_s) -> records     of one duty that is due; then ask again

abort       a metadata transaction that the controller before this one has not ended
bootstrap   the levels of features, if the log holds none
fencing     a broker whose session has ended is fenced, one at a time
balance     partitions whose first replica could lead again get it as their leader, if too many are led by others
no-op       a record without meaning, after a while without any other: brokers see that their metadata is fresh
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from system_under_test.kraft.controller.brokers import SESSION_TIMEOUT_S, Sessions, fence_stale
from system_under_test.kraft.controller.features import ELR_VERSION, elr_safety
from system_under_test.kraft.controller.image import Image
from system_under_test.kraft.controller.partition_requests import elect_leaders
from system_under_test.kraft.controller.partition_rules import Election
from system_under_test.kraft.records.metadata import AbortTransactionRecord, FeatureLevelRecord, NoOpRecord, Record

ELECTIONS_MAX = 1000
"""Of one round of balancing."""


@dataclass(frozen=True, slots=True)
class DutySettings:
    """Kafka's broker.session.timeout.ms, leader.imbalance.check.interval.seconds,
    leader.imbalance.per.broker.percentage and metadata.max.idle.interval.ms; None switches a duty off."""

    session_timeout_s: float = SESSION_TIMEOUT_S
    features: Mapping[str, int] = field(default_factory=dict)
    """The levels that the first active controller writes: Kafka's bootstrap metadata."""
    balance_interval_s: float | None = 300.0
    imbalance_max: float = 0.1
    no_op_interval_s: float | None = 0.5


NO_DUTIES = DutySettings(balance_interval_s=None, no_op_interval_s=None)
"""Of a cluster whose brokers do not register."""


class Duties:
    """sessions: of brokers.  bugs: planted ones (`decisions.py`)."""

    def __init__(self, image: Image, now_s: float, settings: DutySettings, bugs: Collection[str] = ()) -> None:
        self.sessions = Sessions(image, now_s, bugs, settings.session_timeout_s)
        self._settings = settings
        self._bugs = bugs
        self._balance_at_s = now_s + (settings.balance_interval_s or math.inf)
        self._no_op_at_s = now_s + (settings.no_op_interval_s or math.inf)

    def appended(self, now_s: float) -> None:
        """A record was written, so no no-op is needed for a while."""
        self._no_op_at_s = now_s + (self._settings.no_op_interval_s or math.inf)

    def next_due_s(self, image: Image) -> float:
        """Infinity if there is nothing to do, ever."""
        if (self._settings.features and not image.features) or image.in_transaction:
            return -math.inf
        fencing_s = self.sessions.next_deadline_s(image)
        return min(math.inf if fencing_s is None else fencing_s, self._balance_at_s, self._no_op_at_s)

    def perform(self, image: Image, now_s: float) -> list[Record]:
        if image.in_transaction:  # of a controller before this one, for here a decision is one atomic batch
            return [AbortTransactionRecord("Controller failover")]
        if self._settings.features and not image.features:
            levels = self._settings.features
            keeps_elr = levels.get(ELR_VERSION, 0) > 0
            records: list[Record] = [FeatureLevelRecord(name, level) for name, level in levels.items()]
            return [*records, *(elr_safety(image) if keeps_elr else ())]
        records = fence_stale(image, self.sessions, now_s)
        if not records and now_s >= self._balance_at_s:
            self._balance_at_s = now_s + (self._settings.balance_interval_s or math.inf)
            records = self._balance(image)
        if not records and now_s >= self._no_op_at_s:
            self.appended(now_s)
            records = [NoOpRecord()]
        return records

    def _balance(self, image: Image) -> list[Record]:
        preferred: Counter[int] = Counter()
        elsewhere: dict[int, list[tuple[str, int]]] = {}
        for topic in image.topics.values():
            for partition in topic.partitions.values():
                preferred[partition.replicas[0]] += 1
                if partition.leader != partition.replicas[0]:
                    elsewhere.setdefault(partition.replicas[0], []).append((topic.name, partition.partition))
        wanted = [
            which
            for broker, partitions in sorted(elsewhere.items())
            if len(partitions) > preferred[broker] * self._settings.imbalance_max
            for which in sorted(partitions)
        ]
        return elect_leaders(image, wanted[:ELECTIONS_MAX], Election.PREFERRED, self._bugs)[0]
