"""Replays the records of brokers and partitions of one log, and finds impossible records.

A controller decides on the basis of its own log.  So each log, committed or not, must follow the rules by itself.  The
records of one write are atomic: they lie in one batch, and their order is the system's choice.  For example, Kafka
writes the partitions of a broker before the record that fences or registers the broker.  So rules that involve both
brokers and partitions are checked at the end of a batch.

A rule uses the configuration that the log shows at its offset, as the system does: a config of the topic, else of the
broker or the cluster, and the level of a feature.

Brokers:

* The epoch of a new incarnation is an offset in its batch, so epochs rise.  A new incarnation is fenced.
* Every record about a broker names the broker's current epoch.
* Each block of producer ids lies above all earlier blocks.

Partitions:

* A record changes only a partition that an earlier record made and whose topic is not removed.
* The in-sync set is a subset of the replicas, and contains no eligible leader.  A member that joins is alive.
* An eligible leader is a replica and was in sync or eligible before.  There are no eligible leaders while
  `min.insync.replicas` are in sync, and none is added below the level of the feature.
* A replica that leaves the in-sync set while the set is too small stays eligible, unless its broker registers again and
  may have lost data.
* The leader is in sync, and is alive when it is elected.  It was in sync or eligible before, unless the topic permits
  an unclean election.  A new leader that was not in sync becomes the only member of the in-sync set.
* A leader that is alive is not removed from its own in-sync set.
* A reassignment ends as soon as all replicas that it adds are in sync, and not before.  If it makes the partition
  smaller, all remaining replicas must be in sync.
* At the end of a batch, a broker that is fenced, shutting down or unregistered neither leads a partition nor is in
  sync.  Exception: it may be the last member of the in-sync set of a partition without a leader.
* A partition has one directory for each replica, and no record names directories below the level that introduced them:
  Kafka's controllers and brokers fail on either.  This is not judged while no directory is known.

A log that begins after a snapshot does not show its initial state.  Then records about unknown brokers and partitions
are not judged.

There are two checkers, one for brokers and one for partitions.  A part is one node's table of all its copies.  Cost:
linear in the records about brokers and partitions, some 10 µs each.  Memory: the rows of one copy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.checker import Budget, Checker, Need, Part
from checkers.base.stored_rows import log_rows, log_start
from checkers.base.stored_run import StoredRun, gaps, node_files
from checkers.base.verdict import Validity, Verdict, Witness, conclude

NO_LEADER = -1
MIGRATING, UNASSIGNED, LOST = (f"{number:032x}" for number in range(3))
"""Reserved ids of directories (KIP-858)."""
DIRECTORIES_SINCE = 17
"""Level of metadata.version that introduced directories."""
ELR = "eligible.leader.replicas.version"
TOPIC_RESOURCE, BROKER_RESOURCE = "2", "4"
"""Prefixes of the `about` of a config.  A broker without a name stands for the whole cluster."""

# Kinds of violations.
EPOCH_NOT_NEW = "broker epoch is not that of its registration"
UNFENCED_AT_ONCE = "new incarnation is not fenced"
OTHER_EPOCH = "record of another incarnation"
IDS_AGAIN = "producer ids were handed out before"
NOT_IN_SYNC = "leader is not in sync"
NOT_A_REPLICA = "in sync but no replica"
BOTH = "in sync and eligible at once"
TWICE = "partition made twice"
NEVER_MADE = "change of a partition that does not exist"
DEAD_LEADER = "leader is not alive"
DEAD_JOINS = "broker joins the in-sync set while it is not alive"
DEAD_STAYS = "fenced broker keeps its partitions"
UNCLEAN = "leader was not in sync"
NOT_ELIGIBLE = "eligible leader was not in sync"
STILL_ELIGIBLE = "eligible leaders while enough are in sync"
NOT_KEPT = "no eligible leader, though it was in sync"
BELOW_LEVEL = "eligible leaders below the level that has them"
NOT_ALONE = "others stay in sync with a leader that was not"
DROPPED = "leader is dropped and was never fenced"
STAYS_ELIGIBLE = "broker came back uncleanly and stays an eligible leader"
REFUSED_ITSELF = "broker is refused because of itself"
DIRECTORIES = "directories are not one for each replica"
TOO_EARLY = "directories are named below the level that has them"
EARLY_END = "reassignment ended before its replicas were in sync"
LEFT_OPEN = "reassignment goes on though its replicas are in sync"
ELIGIBLE_ELSEWHERE = "eligible leader is no replica"

OF_BROKERS = (EPOCH_NOT_NEW, UNFENCED_AT_ONCE, OTHER_EPOCH, IDS_AGAIN)
"""Kinds that concern brokers; all other kinds that a replay finds concern partitions."""

Record = tuple[int, int, str, str, str]
"""Offset, base offset of the batch, kind, subject, fields as JSON: columns of schema CLUSTER."""


@dataclass(frozen=True, slots=True)
class Broker:
    incarnation: str
    epoch: int
    fenced: bool
    leaving: bool
    directories: tuple[str, ...] = ()

    @property
    def alive(self) -> bool:
        return not self.fenced and not self.leaving


@dataclass(frozen=True, slots=True)
class Partition:
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    leader: int
    elr: tuple[int, ...] = ()
    last_elr: tuple[int, ...] = ()
    recovery: int = 0
    directories: tuple[str, ...] = ()

    def directory(self, broker: int) -> str:
        """Return the directory of a broker's replica; MIGRATING if no record names the directory."""
        named = broker in self.replicas and len(self.directories) == len(self.replicas)
        return self.directories[self.replicas.index(broker)] if named else MIGRATING


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A record that breaks a rule.

    offset: offset of the record
    since: offset of the earlier record that it contradicts; equal to `offset` if there is none
    words: the contradiction, as one sentence
    """

    kind: str
    offset: int
    since: int
    words: str


@dataclass(slots=True)
class ReplayedMetadata:
    """Result of a replay.

    found: contradictions in order of batches, each kind at most once per broker or partition
    counts: number of records, by kind
    unreadable: reason why the replay ended early, or ""
    """

    found: list[Contradiction] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    unreadable: str = ""


class ClusterReplay:
    """Replays one log record by record, in offset order.

    whole: True if the log begins at offset 0
    """

    def __init__(self, whole: bool) -> None:
        self.result = ReplayedMetadata()
        self._whole = whole
        self._brokers: dict[int, Broker] = {}
        self._epochs: dict[int, int] = {}  # broker -> the last epoch it ever had
        self._since: dict[object, int] = {}  # broker or partition -> offset of its last record
        self._partitions: dict[str, Partition] = {}
        self._names: dict[str, str] = {}  # topic id -> name
        self._configs: dict[str, dict[str, str]] = {}  # "2 name of a topic", "4 broker", "4 " -> its configs
        self._base = self._offset = -1  # offsets of the current batch and record; -1 before the first record
        self._elr_in_use = False
        self._level: int | None = None  # level of metadata.version
        self._producer_ids = 0  # all producer ids below it are allocated
        self._told: set[tuple[str, object]] = set()
        # (condition at the end of the batch, partition, contradiction if the condition is then true)
        self._waiting: list[tuple[Callable[[], bool], str, Contradiction]] = []
        self._fenced: set[int] = set()  # brokers fenced by a record of this batch, even if a later record unfenced them
        self._changed = False

    def record(self, offset: int, kind: str, about: str, fields: dict[str, Any], base: int) -> None:
        """Replay a record.

        base: offset of the first record of its batch
        """
        self._base, self._offset = base, offset
        self.result.counts[kind] += 1
        act = _ACTS.get(kind)
        if act is not None:
            act(self, about, fields)
            self._changed = True

    def end_of_batch(self) -> None:
        for is_wrong, about, found in self._waiting:
            if is_wrong():
                self._tell(about, found)
        self._waiting.clear()
        self._fenced.clear()
        if self._changed and self._epochs:
            self._look_at_dead()
        self._changed = False

    def _look_at_dead(self) -> None:
        dead = {number for number in self._epochs if number not in self._brokers or not self._brokers[number].alive}
        for about, held in self._partitions.items() if dead else ():
            left = dead & set(held.isr)
            last = held.leader == NO_LEADER and len(held.isr) == 1
            if held.leader in dead or (left and not last):
                who = held.leader if held.leader in dead else min(left)
                what = "is fenced or shutting down" if who in self._brokers else "is not registered any more"
                words = f"Broker {who} {what}, but still leads {self._name(about)} or is in its in-sync set."
                self._tell(about, self._against(DEAD_STAYS, who, words))

    def _against(self, kind: str, since: object, words: str) -> Contradiction:
        """Return a contradiction of the current record.

        since: the broker or partition whose last record it contradicts
        """
        return Contradiction(kind, self._offset, self._since.get(since, self._offset), words)

    def _tell(self, about: object, found: Contradiction) -> None:
        if (found.kind, about) not in self._told:
            self._told.add((found.kind, about))
            self.result.found.append(found)

    def _of_broker(self, kind: str, number: object, words: str) -> None:
        self._tell(number, self._against(kind, number, f"At offset {self._offset} {words}."))

    def _of_partition(self, kind: str, about: str, words: str) -> None:
        self._tell(about, self._against(kind, about, self._where(about, words)))

    def _where(self, about: str, words: str) -> str:
        return f"At offset {self._offset} {self._name(about)} {words}."

    def _name(self, about: str) -> str:
        topic, _, number = about.partition("/")
        return f"partition {number} of topic {self._names.get(topic, topic)}"

    # Brokers

    def register(self, about: str, fields: dict[str, Any]) -> None:
        number = _number(about)
        known, epoch = self._brokers.get(number), fields["epoch"]
        before = self._epochs.get(number, -1)
        if known is not None and known.incarnation == fields["incarnation"]:
            if epoch != known.epoch:
                words = f"the same incarnation of broker {number} has epoch {epoch}, and had {known.epoch}"
                self._of_broker(EPOCH_NOT_NEW, number, words)
        else:
            if not self._base <= epoch <= self._offset or epoch <= before:
                due = f"an offset of its batch, {self._base} to {self._offset}"
                words = f"broker {number} is registered anew with epoch {epoch}; it should be {due}"
                self._of_broker(EPOCH_NOT_NEW, number, words)
            if not fields["fenced"]:
                self._of_broker(UNFENCED_AT_ONCE, number, f"a new incarnation of broker {number} is not fenced")
        directories = tuple(fields.get("directories") or ())
        self._brokers[number] = Broker(fields["incarnation"], epoch, fields["fenced"], fields["leaving"], directories)
        if directories:
            self._look_at_level(about, f"the registration of broker {number}")
        self._epochs[number] = max(before, epoch)
        self._since[number] = self._offset

    def _present(self, about: str, fields: dict[str, Any]) -> Broker | None:
        number = _number(about)
        known = self._brokers.get(number)
        if self._whole if known is None else known.epoch != fields["epoch"]:
            has = "is not registered" if known is None else f"has epoch {known.epoch}"
            words = f"a record is about epoch {fields['epoch']} of broker {number}, which {has}"
            self._of_broker(OTHER_EPOCH, number, words)
            return None
        return known

    def change_broker(self, about: str, fields: dict[str, Any]) -> None:
        known = self._present(about, fields)
        if known is not None:
            number = _number(about)
            fenced = {1: True, -1: False}.get(fields.get("fenced", 0), known.fenced)
            if fields.get("fenced") == 1:
                self._fenced.add(number)
            leaving = known.leaving or fields.get("leaving") == 1
            directories = tuple(fields.get("directories") or known.directories)
            self._brokers[number] = replace(known, fenced=fenced, leaving=leaving, directories=directories)
            self._since[number] = self._offset

    def fence(self, about: str, fields: dict[str, Any]) -> None:
        self.change_broker(about, fields | {"fenced": 1})

    def unfence(self, about: str, fields: dict[str, Any]) -> None:
        self.change_broker(about, fields | {"fenced": -1})

    def unregister(self, about: str, fields: dict[str, Any]) -> None:
        if self._present(about, fields) is not None:
            del self._brokers[_number(about)]
            self._since[_number(about)] = self._offset

    def producer_ids(self, about: str, fields: dict[str, Any]) -> None:
        if fields["next"] <= self._producer_ids:
            words = f"producer ids below {fields['next']} are handed out, but all below {self._producer_ids} are in use"
            self._of_broker(IDS_AGAIN, "producer ids", words)
        self._producer_ids = max(self._producer_ids, fields["next"])
        self._since["producer ids"] = self._offset

    # Topics

    def feature(self, about: str, fields: dict[str, Any]) -> None:
        if about == ELR:
            self._elr_in_use = fields["level"] > 0
        elif about == "metadata.version":
            self._level = fields["level"]

    def clear_elr(self, about: str, fields: dict[str, Any]) -> None:
        for partition, held in self._partitions.items():
            if about in ("", self._names.get(partition.partition("/")[0])):
                self._partitions[partition] = replace(held, elr=(), last_elr=())

    def topic(self, about: str, fields: dict[str, Any]) -> None:
        self._names[about] = fields["name"]

    def remove_topic(self, about: str, fields: dict[str, Any]) -> None:
        self._configs.pop(f"{TOPIC_RESOURCE} {self._names.pop(about, '')}", None)
        for partition in [each for each in self._partitions if each.startswith(f"{about}/")]:
            del self._partitions[partition]

    def config(self, about: str, fields: dict[str, Any]) -> None:
        configs = self._configs.setdefault(about, {})
        if fields["value"] is None:
            configs.pop(fields["name"], None)
        else:
            configs[fields["name"]] = fields["value"]

    def _values(self, about: str, name: str) -> list[str]:
        """Return the values of a config that may be in force for a partition.

        There may be several, because a controller's own broker config takes precedence over the config of the cluster,
        and the log does not name the controller.
        """
        topic = self._names.get(about.partition("/")[0], "")
        if (own := self._configs.get(f"{TOPIC_RESOURCE} {topic}", {}).get(name)) is not None:
            return [own]
        of_brokers = {about: configs for about, configs in self._configs.items() if about[0] == BROKER_RESOURCE}
        return [configs[name] for configs in of_brokers.values() if name in configs]

    # Partitions

    def partition(self, about: str, fields: dict[str, Any]) -> None:
        made = Partition(**_lists_of(fields), leader=fields["leader"], recovery=fields.get("recovery", 0))
        if about in self._partitions:
            self._of_partition(TWICE, about, "is made again")
        if made.directories:
            self._look_at_level(about, f"the record of {self._name(about)}")
        self._look_at(about, made, set(made.isr))
        self._partitions[about], self._since[about] = made, self._offset

    def change_partition(self, about: str, fields: dict[str, Any]) -> None:
        before = self._partitions.get(about)
        if before is None:
            if self._whole:
                self._of_partition(NEVER_MADE, about, "is changed, and does not exist")
            return
        leader = before.leader if fields.get("leader", -2) == -2 else fields["leader"]
        recovery = fields.get("recovery", before.recovery)
        after = replace(before, **_lists_of(fields), leader=leader, recovery=recovery)
        self._look_at(about, after, set(after.isr) - set(before.isr))
        if fields.get("directories"):
            self._look_at_level(about, f"the change of {self._name(about)}")
        self._look_at_change(about, before, after)
        self._look_at_eligible(about, before, after, elects="leader" in fields)
        self._partitions[about], self._since[about] = after, self._offset

    def _look_at(self, about: str, held: Partition, joined: set[int]) -> None:
        replicas, isr = f"has replicas on {list(held.replicas)}", set(held.isr)
        if held.leader != NO_LEADER and held.leader not in isr:
            self._of_partition(NOT_IN_SYNC, about, f"is led by broker {held.leader}, and {list(held.isr)} are in sync")
        if not isr <= set(held.replicas) or len(isr) < len(held.isr):
            self._of_partition(NOT_A_REPLICA, about, f"{replicas}, and {list(held.isr)} are in sync")
        if set(held.directories) - {MIGRATING} and len(held.directories) != len(held.replicas):
            self._of_partition(DIRECTORIES, about, f"{replicas}, and {len(held.directories)} directories")
        if isr & set(held.elr):
            words = f"has {list(held.isr)} in sync and {list(held.elr)} as eligible leaders"
            self._of_partition(BOTH, about, words)
        if not self._brokers:
            return  # this cluster has no registered brokers
        dead = "which is fenced, shutting down or not registered"
        if held.leader != NO_LEADER and self._is_dead(held.leader):
            words = f"is given to broker {held.leader} to lead, {dead}"
            self._wait(DEAD_LEADER, held.leader, about, words, self._still_leads)
        for number in sorted(joined):
            if self._is_dead(number) and number != held.leader:
                words = f"gets broker {number} into its in-sync set, {dead}"
                self._wait(DEAD_JOINS, number, about, words, self._still_in_sync)

    def _look_at_level(self, about: str, what: str) -> None:
        if self._level is not None and self._level < DIRECTORIES_SINCE:
            words = f"{what} names directories, though metadata.version is {self._level}"
            self._of_broker(TOO_EARLY, about, words)

    def _is_usable(self, broker: int, directory: str) -> bool:
        """Return True if a broker can use a directory.  An unknown or unassigned directory counts as usable."""
        known = self._brokers.get(broker)
        if directory in (MIGRATING, UNASSIGNED) or known is None or not known.directories:
            return directory != LOST
        return directory in known.directories

    def _wait(self, kind: str, broker: int, about: str, words: str, is_wrong: Callable[[int, str], bool]) -> None:
        """Judge a contradiction at the end of the batch, because later records may change the state of the broker.

        is_wrong: returns True if the contradiction still holds for (broker, partition)
        """
        found = self._against(kind, broker, self._where(about, words))
        self._waiting.append((partial(is_wrong, broker, about), about, found))

    def _still_leads(self, broker: int, about: str) -> bool:
        held = self._partitions.get(about)
        return self._is_dead(broker) and held is not None and held.leader == broker

    def _still_in_sync(self, broker: int, about: str) -> bool:
        held = self._partitions.get(about)
        return self._is_dead(broker) and held is not None and broker in held.isr

    def _can_serve(self, broker: int, about: str) -> bool:
        held = self._partitions.get(about)
        dead = self._is_dead(broker) or broker in self._fenced
        return not dead and (held is None or self._is_usable(broker, held.directory(broker)))

    def _has_all(self, broker: int, about: str) -> bool:
        """Return True unless this batch registers the broker again: then the broker may have lost data."""
        return self._epochs.get(broker, -1) < self._base

    def _is_dead(self, number: int) -> bool:
        known = self._brokers.get(number)
        return self._whole if known is None else not known.alive

    def _look_at_change(self, about: str, before: Partition, after: Partition) -> None:
        ended = bool(before.adding or before.removing) and not after.adding and not after.removing
        # an unclean election after the end of the reassignment
        uncleanly = (after.leader,) == after.isr and after.leader not in before.isr
        in_sync = (*before.isr, *after.isr) if uncleanly else after.isr
        if ended and (missing := set(before.adding) & set(after.replicas) - set(in_sync)):
            words = f"ends its reassignment, but {sorted(missing)} of the replicas that it added are not in sync"
            self._of_partition(EARLY_END, about, words)
        kept, alone = set(after.isr) - set(after.removing), (after.leader,) == after.isr != before.isr
        due = set(after.replicas) if len(after.removing) > len(after.adding) else set(after.adding)
        moves = after.adding or after.removing
        # After an unclean election the reassignment ends with the next change that names a leader.  Without a leader
        # no replica counts as in sync.
        if moves and kept and due - set(after.removing) <= kept and not alone and after.leader != NO_LEADER:
            words = f"adds {list(after.adding)} and removes {list(after.removing)}, and {list(after.isr)} are in sync"
            self._of_partition(LEFT_OPEN, about, f"{words}, but its reassignment goes on")
        leader = after.leader
        if leader not in (NO_LEADER, before.leader) and not ended:
            words = f"gets broker {leader} as its leader, though {list(before.isr)} were in sync"
            if leader not in before.isr and after.isr != (leader,):
                self._of_partition(NOT_ALONE, about, f"{words}; {list(after.isr)} are now")
            could = leader in (*before.isr, *before.elr)
            if not could and "true" not in self._values(about, "unclean.leader.election.enable"):
                words = f"{words}, {list(before.elr)} eligible"
                if before.isr or before.last_elr != (leader,):
                    self._of_partition(UNCLEAN, about, words)
                for member in before.elr:  # the last known leader may lead if no replica is eligible
                    self._wait(UNCLEAN, member, about, words, self._has_all)
        old = before.leader
        alive = old in self._brokers and self._brokers[old].alive
        if old != NO_LEADER and alive and old in after.replicas and old not in after.isr and not ended:
            words = f"loses its leader, broker {old}, from its in-sync set, though {old} is not fenced"
            self._wait(DROPPED, old, about, words, self._can_serve)

    def _look_at_eligible(self, about: str, before: Partition, after: Partition, *, elects: bool) -> None:
        """Judge the eligible leaders after a change of a partition.

        elects: True if the record names a leader.  Right after the election of an eligible leader, the others may stay
        eligible.
        """
        if new := set(after.elr) - {*before.elr, *before.isr}:
            held = f"though {list(before.isr)} were in sync and {list(before.elr)} eligible"
            self._of_partition(NOT_ELIGIBLE, about, f"gets {sorted(new)} as eligible leaders, {held}")
        if gone := set(after.elr) - set(after.replicas):
            words = f"has replicas on {list(after.replicas)}, and {sorted(gone)} as eligible leaders"
            self._of_partition(ELIGIBLE_ELSEWHERE, about, words)
        if not self._whole:
            return  # neither the feature level nor the configs are known
        if not self._elr_in_use:
            if new := set(after.elr) - set(before.elr):
                words = f"gets {sorted(new)} as eligible leaders, and {ELR} is at level 0"
                self._of_partition(BELOW_LEVEL, about, words)
            return
        least, most = (min(needed, len(after.replicas)) for needed in self._min_insync(about))
        if after.elr and not elects and len(after.isr) >= most:
            words = f"has {list(after.isr)} in sync and needs {most}, but {list(after.elr)} are still eligible"
            self._of_partition(STILL_ELIGIBLE, about, words)
        unclean = after.leader not in (NO_LEADER, before.leader, *before.isr, *before.elr)
        if len(after.isr) < least and not unclean:
            words = f"has {list(after.isr)} in sync and needs {least}, but"
            for member in sorted({*before.isr, *before.elr} & set(after.replicas) - {*after.isr, *after.elr}):
                lost = f"{words} broker {member}, which held everything, is no eligible leader"
                self._wait(NOT_KEPT, member, about, lost, self._has_all)

    def _min_insync(self, about: str) -> tuple[int, int]:
        """Return the smallest and the largest possible value of `min.insync.replicas`, as far as the log shows it."""
        values = list(map(int, self._values(about, "min.insync.replicas")))
        topic = f"{TOPIC_RESOURCE} {self._names.get(about.partition('/')[0], '')}"
        of_all = {name for each in (topic, f"{BROKER_RESOURCE} ") for name in self._configs.get(each, {})}
        if "min.insync.replicas" not in of_all:
            values.append(1)
        return min(values), max(values)


_ACTS: dict[str, Callable[[ClusterReplay, str, dict[str, Any]], None]] = {
    "register broker": ClusterReplay.register,
    "unregister broker": ClusterReplay.unregister,
    "producer ids": ClusterReplay.producer_ids,
    "feature": ClusterReplay.feature,
    "clear elr": ClusterReplay.clear_elr,
    "fence broker": ClusterReplay.fence,
    "unfence broker": ClusterReplay.unfence,
    "change broker": ClusterReplay.change_broker,
    "topic": ClusterReplay.topic,
    "remove topic": ClusterReplay.remove_topic,
    "config": ClusterReplay.config,
    "partition": ClusterReplay.partition,
    "change partition": ClusterReplay.change_partition,
}


def _number(about: str) -> int:
    return int(about.rpartition(" ")[2])


def _lists_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lists of brokers and directories that a record about a partition names."""
    lists = ("replicas", "isr", "adding", "removing", "elr", "last_elr", "directories")
    return {name: tuple(fields[name] or ()) for name in lists if name in fields}


def replay(records: Iterable[Record], *, whole: bool) -> ReplayedMetadata:
    """Return the result of a replay of one log.

    records: in offset order
    whole: True if the log begins at offset 0
    """
    run, batch = ClusterReplay(whole), -1
    for offset, base, kind, about, fields in records:
        if kind == "undecodable":
            run.result.unreadable = f"the record at offset {offset} cannot be decoded ({json.loads(fields)['why']})"
            break
        if base != batch and batch >= 0:
            run.end_of_batch()
        run.record(offset, kind, about, json.loads(fields), base)
        batch = base
    else:
        run.end_of_batch()
    return run.result


RECORD_SIZE_BYTES = 1000
"""Maximum memory per row in bytes."""


class _Half(NamedTuple):
    """The findings that one of the two checkers reports.

    of_brokers: True for kinds in OF_BROKERS, False for all other kinds
    subject: the kind of record that a log must contain
    """

    of_brokers: bool
    subject: str
    expected: str


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    """Finding on the logs of one node.

    found: (the last copy that shows it, contradiction)
    counts: number of records, by kind
    """

    node: str
    found: tuple[tuple[int, Contradiction], ...] = ()
    counts: Counter[str] = field(default_factory=Counter)
    unknown: tuple[str, ...] = ()


def _split(run: StoredRun) -> list[Part]:
    readable = [c for c in run.copies if not c["error"]]
    logs = node_files(run.log)
    return [
        Part((path, logs[node]), {"node": node, "copies": [c["copy"] for c in readable if c["node"] == node]})
        for node, path in node_files(run.cluster).items()
        if node in logs
    ]


def _judge(part: Part, budget: Budget) -> ClusterFinding:
    node, copies = part.params["node"], set(part.params["copies"])
    path, log = part.paths
    metadata = pq.read_metadata(path)
    budget.demand(metadata.num_rows * RECORD_SIZE_BYTES, f"{path}: {metadata.num_rows} records")
    table = pq.read_table(path, partitioning=None)
    found: dict[tuple[str, int], tuple[int, Contradiction]] = {}
    counts: Counter[str] = Counter()
    unknown: list[str] = []
    for copy in sorted(copies):
        replayed = replay(_records(table, copy), whole=log_start(log, copy) == 0)
        counts.update(replayed.counts)
        if replayed.unreadable:
            unknown.append(f"copy {copy} of {node}: {replayed.unreadable}")
        found.update({(each.kind, each.offset): (copy, each) for each in replayed.found})
    return ClusterFinding(node, tuple(found.values()), counts, tuple(unknown))


def _records(table: pa.Table, copy: int) -> Sequence[tuple[int, int, str, str, str]]:
    rows = table.filter(pa.compute.equal(table["copy"], copy))
    columns = (rows[name].to_pylist() for name in ("offset", "batch_offset", "kind", "about", "fields"))
    return list(zip(*columns, strict=True))


def _combine(half: _Half, run: StoredRun, findings: Sequence[ClusterFinding]) -> Verdict:
    subject = half.subject
    counts = sum((finding.counts for finding in findings), Counter[str]())
    looked_at = {"logs": len(findings)} | {f"records: {name}": counts[name] for name in sorted(counts)}
    unknown = [why for finding in findings for why in finding.unknown] + gaps(run, "logs")
    if run.demands.registers_brokers:
        unknown += [] if counts[subject] else [f"there were no records of the kind {subject!r}"]
    elif not counts[subject] and not unknown:
        return Verdict(Validity.NOT_APPLICABLE, reason=f"no log holds a record of the kind {subject!r}")
    # Several nodes may have the same record; report the first node.
    first: dict[tuple[str, int], tuple[str, int, Contradiction]] = {}
    for node, copy, found in ((finding.node, *each) for finding in findings for each in finding.found):
        if (found.kind in OF_BROKERS) == half.of_brokers:
            first.setdefault((found.kind, found.offset), (node, copy, found))
    in_order = sorted(first.values(), key=lambda which: which[2].offset)
    return conclude([_witness(run, half.expected, *which) for which in in_order], looked_at, unknown)


def _witness(run: StoredRun, expected: str, node: str, copy: int, found: Contradiction) -> Witness:
    rows = log_rows(node_files(run.log)[node], copy, sorted({found.since, found.offset}))
    return Witness.of(
        found.kind,
        found.words,
        rows,
        nodes=[node],
        copies=[copy],
        epoch=rows[-1]["epoch"] if rows else -1,
        offset=found.offset,
        expected=expected,
    )


def _checker(name: str, title: str, question: str, half: _Half) -> Checker:
    """Return one of the two checkers.  They share their parts, so each log is replayed only once."""
    needs: frozenset[Need] = frozenset({"logs", "kraft-records"})
    return Checker(name, title, question, _split, _judge, partial(_combine, half), needs)


BROKER_INCARNATIONS = _checker(
    "broker-incarnations",
    "One incarnation of each broker",
    "Is at most one incarnation of each broker unfenced at each offset, and do broker epochs rise?",
    _Half(True, "register broker", "one incarnation of a broker at a time, each with an epoch above the one before"),
)

PARTITION_CHAIN = _checker(
    "partition-chain",
    "Partitions change one step after the other",
    "Does each record of a partition follow from the one before, with a leader that is alive and in sync?",
    _Half(False, "partition", "a leader that is alive and in sync, chosen from those that hold everything"),
)
