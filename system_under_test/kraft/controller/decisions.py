"""The decisions on which the safety of brokers and partitions depends, each a pure function with one planted bug.

A planted bug is active if `bugs` contains its name.  It changes the result of one function of this file and nothing
else.  A JIRA number names the bug of Apache Kafka that a planted bug reproduces.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID, uuid5

STALE_BROKER_EPOCH = "stale-broker-epoch"
FENCE_WITHOUT_RECORD = "fence-without-record"
UNFENCE_EARLY = "unfence-early"
ISR_IGNORES_PARTITION_EPOCH = "isr-ignores-partition-epoch"
FENCED_JOINS_ISR = "fenced-joins-isr"
STALE_EPOCH_JOINS_ISR = "stale-epoch-joins-isr"
UNCLEAN_BY_DEFAULT = "unclean-by-default"
LAST_KNOWN_LEADER_UNCHECKED = "last-known-leader-unchecked"
ELR_KEEPS_UNCLEAN = "elr-keeps-unclean"
REASSIGNMENT_DONE_EARLY = "reassignment-done-early"
TOPIC_ID_LOST_ON_CHANGE = "topic-id-lost-on-change"
DELETES_TOPIC_KEEPS_CONFIGS = "deletes-topic-keeps-configs"
SESSION_NOT_RENEWED = "session-not-renewed"
FAILOVER_FORGETS_SESSIONS = "failover-forgets-sessions"
REGISTERS_UNFENCED = "registers-unfenced"
LEAVING_BROKER_LEADS = "leaving-broker-leads"

BUGS: dict[str, str] = {
    STALE_BROKER_EPOCH: "a broker that restarts is registered with the epoch of its previous incarnation",
    FENCE_WITHOUT_RECORD: "a silent broker loses its partitions, but no record says that it is fenced",
    UNFENCE_EARLY: "a broker is unfenced before its metadata includes its own registration",
    ISR_IGNORES_PARTITION_EPOCH: "a leader's proposed in-sync set is accepted although the partition has changed since",
    FENCED_JOINS_ISR: "a broker that is fenced or shuts down joins an in-sync set (KAFKA-13916)",
    STALE_EPOCH_JOINS_ISR: "a replica joins the in-sync set with the epoch of its previous incarnation (KAFKA-14617)",
    UNCLEAN_BY_DEFAULT: "a replica that is not in sync is elected although the topic does not allow it",
    LAST_KNOWN_LEADER_UNCHECKED: "the last known leader is elected although it may not be alive (KAFKA-19522)",
    ELR_KEEPS_UNCLEAN: "a broker stays an eligible leader after an unclean shutdown (KIP-966)",
    REASSIGNMENT_DONE_EARLY: "a reassignment ends before its new replicas are in sync (KAFKA-15665)",
    TOPIC_ID_LOST_ON_CHANGE: "a change of a partition gives it a new topic id, used by later records (KAFKA-14190)",
    DELETES_TOPIC_KEEPS_CONFIGS: "the configs of a deleted topic stay, and a new topic of its name inherits them",
    SESSION_NOT_RENEWED: "a heartbeat does not renew the session, so a live broker is fenced again and again",
    FAILOVER_FORGETS_SESSIONS: "a new controller expects no heartbeat from brokers whose heartbeats it never received",
    REGISTERS_UNFENCED: "a starting broker is registered as unfenced, before it has applied any record",
    LEAVING_BROKER_LEADS: "a broker that shuts down can be elected as the leader of a partition (KIP-841)",
}
"""Every planted bug of the controller, with its effect."""


def epoch_of_registration(record_offset: int, former_epoch: int | None, bugs: Collection[str] = ()) -> int:
    """Return the epoch of a new incarnation: the offset of its record, which is unique among registrations.

    former_epoch: epoch of the previous incarnation; None if there was none
    """
    if STALE_BROKER_EPOCH in bugs and former_epoch is not None:
        return former_epoch
    return record_offset


def is_fenced_at_first(bugs: Collection[str] = ()) -> bool:
    """Return True if a new incarnation is registered as fenced, and stays fenced until it has applied its own
    registration.
    """
    return REGISTERS_UNFENCED not in bugs


def renews_session(bugs: Collection[str] = ()) -> bool:
    """Return True if a heartbeat renews the broker's session."""
    return SESSION_NOT_RENEWED not in bugs


def expects_heartbeat(fenced: bool, bugs: Collection[str] = ()) -> bool:
    """Return True if a new controller expects a heartbeat of a broker that it knows only from the log."""
    return not fenced and FAILOVER_FORGETS_SESSIONS not in bugs


def fences_by_record(bugs: Collection[str] = ()) -> bool:
    """Return True if the end of a session is written to the log.  A successor can only learn of it from the log."""
    return FENCE_WITHOUT_RECORD not in bugs


def knows_its_registration(metadata_offset: int, broker_epoch: int, bugs: Collection[str] = ()) -> bool:
    """Return True if a broker has applied the record of its own registration.

    Nothing more is required, because on a busy log the broker never reaches the end (KAFKA-13959).
    """
    return metadata_offset >= broker_epoch or UNFENCE_EARLY in bugs


def proposal_is_old(proposed_on: int, partition_epoch: int, bugs: Collection[str] = ()) -> bool:
    """Return True if the partition changed after the partition epoch `proposed_on` on which the leader based its
    proposal.
    """
    return proposed_on < partition_epoch and ISR_IGNORES_PARTITION_EPOCH not in bugs


def may_be_in_sync(fenced: bool, shutting_down: bool, bugs: Collection[str] = ()) -> bool:
    """Return True if a registered broker may be in an in-sync set."""
    return not (fenced or shutting_down) or FENCED_JOINS_ISR in bugs


def may_lead(fenced: bool, shutting_down: bool, bugs: Collection[str] = ()) -> bool:
    """Return True if a registered broker may become the leader of a partition (KIP-841)."""
    return not fenced and (not shutting_down or LEAVING_BROKER_LEADS in bugs)


def is_this_incarnation(proposed_epoch: int, registered_epoch: int, bugs: Collection[str] = ()) -> bool:
    """Return True if a leader's proposal refers to the currently registered incarnation.  An earlier incarnation may
    have had data that the current one lost.
    """
    return proposed_epoch == registered_epoch or STALE_EPOCH_JOINS_ISR in bugs


def may_elect_unclean(configured: bool, bugs: Collection[str] = ()) -> bool:
    """Return True if losing acknowledged data is preferred to having no leader, as the topic's config determines."""
    return configured or UNCLEAN_BY_DEFAULT in bugs


def last_known_may_lead(alive: bool, bugs: Collection[str] = ()) -> bool:
    return alive or LAST_KNOWN_LEADER_UNCHECKED in bugs


def lost_replicas(unclean_shutdown: Collection[int], bugs: Collection[str] = ()) -> frozenset[int]:
    """Return the eligible leaders that may have lost data: those that did not shut down cleanly."""
    return frozenset() if ELR_KEEPS_UNCLEAN in bugs else frozenset(unclean_shutdown)


def reassignment_is_done(needed: Collection[int], in_sync: Collection[int], bugs: Collection[str] = ()) -> bool:
    """Return True if a reassignment is complete, so that its old replicas can be removed.

    needed: replicas that must be in sync
    in_sync: replicas that remain and are in sync
    """
    return bool(in_sync) and (set(needed) <= set(in_sync) or REASSIGNMENT_DONE_EARLY in bugs)


def topic_id_after_change(topic_id: UUID, bugs: Collection[str] = ()) -> UUID:
    """Return the topic id of a changed partition, which must not change (KAFKA-14190)."""
    return uuid5(topic_id, "changed") if TOPIC_ID_LOST_ON_CHANGE in bugs else topic_id


def configs_go_with_topic(bugs: Collection[str] = ()) -> bool:
    """Return True if a deleted topic's configs are removed with it, because no separate record removes the configs
    (KIP-631).
    """
    return DELETES_TOPIC_KEEPS_CONFIGS not in bugs
