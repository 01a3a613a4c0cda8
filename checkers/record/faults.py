"""Faults as data, and the record of each fault.

A schedule is a list of `Card`s: what to inject, when, and for how long.  It is plain JSON, so the same file runs on
every backend.  The meaning of a card for *this* cluster (its current leader) is determined at injection.  The resolved
`Fault` is recorded, so that a run can be replayed exactly.

All kinds of fault share these types; `nemesis.kinds` contains everything specific to a kind.  A `Copy` of a data
directory belongs here too, because copies are made before heals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

AT_TIMES: Mapping[str, bool] = {"at times": True}
"""Metadata of an optional field: only some records of the current format contain it.  A missing value never makes a
check more lenient."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of one node's data directory in the run folder.

    copy: number of the copy; the copies of all nodes made at the same time share it
    when: "before heal 3", "between heals" or "final"
    state: of the process when its directory was copied: "running", "stopped" or "dead"
    folder: folder of the copied files, relative to the run folder
    trace_size_bytes: size of this node's trace at that time; -1: not recorded
    taken_ns: time when the copy was complete, in ns since the test began; -1: not recorded
    """

    copy: int
    when: str
    node: str
    state: str
    folder: str
    trace_size_bytes: int = -1
    taken_ns: int = -1


Link = tuple[str, str]
"""A directed link between two nodes: source and destination."""


class Achieved(StrEnum):
    """Outcome of a fault.  A run can be valid only if each fault is INSTALLED, or SKIPPED for a recorded reason."""

    INSTALLED = "installed"
    SKIPPED = "skipped"
    INDETERMINATE = "indeterminate"
    NOT_ACHIEVED = "not achieved"


MAY_DIE = "may_die"
"""Name of a setting: the fault may end the processes of its nodes, and their end is no violation."""
MAY_STAY_DOWN = "may_stay_down"
"""Name of a setting: these nodes may refuse to start until the end of the run."""
DAMAGES_DATA = "damages_data"
"""Name of a setting: after the fault began, the disks of these nodes are no evidence about the system."""
CHANGES_MEMBERS = "changes_members"
"""Name of a setting: the fault changes the members of the system while it is in force, and so its majorities."""
WIPES_DISKS = "wiped"
"""Name of a setting: each of these nodes restarts with an empty disk, while the fault is in force or at its heal."""
KEPT = "kept"
"""Name of a setting: the unsynced data that the disks of these nodes keep; all other unsynced data is lost."""
OLDEST_LOST = "age of the oldest write lost_ms"
"""Name of a measured value: the age of the oldest unsynced data that was lost."""
LOST_OF = "bytes lost of "
"""Prefix of the name of a measured value, followed by a file name: the bytes a power loss removed from the file."""
_ONE_PROCESS = ":"
"""Separator in the name of a kind whose faults hit one process; the process's name follows, as in `kill:agent`."""


@dataclass(frozen=True, slots=True)
class Card:
    """One entry of a schedule.

    at_s, heal_s: begin and heal of the fault, in seconds since the main phase began
    number: unique within the schedule
    kind: a name of `nemesis.kinds.KINDS`
    name: one of the targets of that kind
    like: number of an earlier card that belongs to the same fault; 0: none.  If both cards have the same kind and
        target, this card repeats the earlier resolved fault; otherwise the node that the earlier card hit takes the
        place of the leader.
    after, moment: from `at_s` on, the card waits for this moment (`nemesis.coverage`) in the effects of the earlier
        card `after`; 0 and "": it does not wait
    until, until_of, until_s: the fault is healed `until_s` seconds after the moment `until` in the effects of the card
        `until_of`, and at `heal_s` at the latest; "": at `heal_s`
    line, line_nth, line_of: from `at_s` on, the card waits until a server prints the n-th line that matches `line`: a
        name of the system's `moments`, a regular expression, or "any".  The wait delays the heal equally.
        line_of: role of the server that must print the line, "leader" or "follower"; "": any server may print it, and
        this server then takes the place of the leader.
    """

    number: int
    kind: str
    name: str
    at_s: float
    heal_s: float
    like: int = 0
    after: int = 0
    moment: str = ""
    until: str = field(default="", metadata=AT_TIMES)
    until_of: int = field(default=0, metadata=AT_TIMES)
    until_s: float = field(default=0.0, metadata=AT_TIMES)
    line: str = field(default="", metadata=AT_TIMES)
    line_nth: int = field(default=0, metadata=AT_TIMES)
    line_of: str = field(default="", metadata=AT_TIMES)


@dataclass(frozen=True, slots=True)
class Condition:
    """Expected measurements.

    states: node -> process state
    values: name -> (minimum, maximum)
    """

    states: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ordered:
    """Expected measurements while the fault is in force, and after its heal.

    Links need no entry: `Fault.cut` names them.
    """

    held: Condition = field(default_factory=Condition)
    healed: Condition = field(default_factory=Condition)


@dataclass(frozen=True, slots=True)
class Fault:
    """A resolved fault.

    words: one sentence for a reader
    nodes: the nodes that it hits
    cut: directed links that lose every packet
    settings: what else its kind needs to carry it out; plain JSON
    leader: the node that led when the fault was resolved; None if no node did.  It determines the roles of `nodes`.
    """

    kind: str
    words: str
    nodes: tuple[str, ...] = ()
    cut: frozenset[Link] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=dict)
    leader: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fault in the form of a schedule file."""
        return {
            "words": self.words,
            "nodes": list(self.nodes),
            "cut": [list(link) for link in sorted(self.cut)],
            "settings": dict(self.settings),
            **({"leader": self.leader} if self.leader is not None else {}),
        }


@dataclass(frozen=True, slots=True)
class Measurement:
    """Values that were measured from `from_ns` to `to_ns` (ns since the test began).

    phase: "inject", "hold", "before heal" or "heal"
    links: "a>b" -> (beacons sent, beacons received)
    also_cut: links that other faults cut during the whole measurement
    unsettled: links that were cut or healed during the measurement
    problems: reasons why a value could not be measured, in words
    """

    phase: str
    from_ns: int
    to_ns: int
    links: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    also_cut: tuple[Link, ...] = ()
    unsettled: tuple[Link, ...] = ()
    states: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Proof:
    """A summary of measurements.

    links: "a>b" -> (beacons sent, received)
    states: node -> process state
    """

    verdict: str  # "as ordered", "not as ordered", "indeterminate"
    links: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()  # deviations from the order, in words


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """Everything known about one fault.  Times are ns since the test began; -1: it did not happen.

    kind: of the fault, as in `card`
    leader, epoch: the leader when the card was resolved, if there was one
    ordered: the values that measurements must show
    injected_ns: time when the fault had been carried out
    apply_ms: milliseconds that carrying it out took
    measured: every measurement; `checkers.run_quality.faults_installed` computes the outcome from them
    achieved, reason, lapsed_ns: the computed outcome at the last change of the record
    over_budget: True if this fault and those before it cost more than a minority of servers their fsynced data
    impossible: True if it was skipped because no fault of its kind can be carried out on this system and backend
    inject_proof, heal_proof: summaries for a reader
    """

    card: Card
    achieved: Achieved
    words: str
    reason: str = ""  # reason if skipped, indeterminate or not achieved
    leader: str | None = None
    epoch: int = -1
    kind: str = ""
    cut: tuple[Link, ...] = ()
    nodes: tuple[str, ...] = ()
    ordered: Ordered = field(default_factory=Ordered)
    settings: Mapping[str, Any] = field(default_factory=dict)
    injected_ns: int = -1
    heal_ordered_ns: int = -1
    healed_ns: int = -1
    apply_ms: float = -1.0
    lapsed_ns: int = -1
    over_budget: bool = False
    impossible: bool = False
    measured: tuple[Measurement, ...] = ()
    inject_proof: Proof | None = None
    heal_proof: Proof | None = None

    @property
    def fault(self) -> Fault:
        return Fault(self.card.kind, self.words, self.nodes, frozenset(self.cut), self.settings, self.leader)

    @property
    def began_ns(self) -> int:
        """Earliest time at which the fault began, because it may take effect before the order returns.  -1: it was not
        carried out."""
        return self.injected_ns - int(max(self.apply_ms, 0.0) * 1e6) if self.injected_ns >= 0 else -1

    @property
    def may_die(self) -> bool:
        """True if the fault may end the processes of its nodes, so that their end is no violation."""
        return self.settings.get(MAY_DIE) is True

    @property
    def may_stay_down(self) -> bool:
        """True if the processes of its nodes may refuse to start until the end of the run."""
        return self.settings.get(MAY_STAY_DOWN) is True

    @property
    def damages_data(self) -> bool:
        """True if the disks of its nodes are no evidence about the system after the fault began."""
        return self.settings.get(DAMAGES_DATA) is True

    @property
    def wipes_disks(self) -> bool:
        """True if its nodes restart with empty disks."""
        return self.settings.get(WIPES_DISKS) is True

    @property
    def loses_unsynced(self) -> bool:
        """True if the disks of its nodes lose data that was not fsynced."""
        return KEPT in self.settings

    @property
    def changes_members(self) -> bool:
        """Return True if its begin and its heal change the members of the system."""
        return self.settings.get(CHANGES_MEMBERS) is True

    @property
    def hits_one_process(self) -> bool:
        """True if it hits only one named process of each server, which may have several."""
        return _ONE_PROCESS in self.card.kind

    @property
    def carried_out(self) -> bool:
        return self.injected_ns >= 0

    @property
    def healed(self) -> bool:
        return self.healed_ns >= 0

    def end_ns(self, otherwise_ns: int) -> int:
        """Return the time of its heal, or `otherwise_ns` if it was never healed."""
        return self.healed_ns if self.healed else otherwise_ns

    def in_force(self, from_ns: int, to_ns: int) -> bool:
        """Return True if the fault was in force at any time of this span, both ends included.

        The times of injection and heal decide, not the measurements.
        """
        return self.carried_out and self.began_ns <= to_ns and (not self.healed or self.healed_ns >= from_ns)

    @property
    def ended(self) -> frozenset[str]:
        """The nodes whose server it was ordered to end."""
        return frozenset(node for node, state in self.ordered.held.states.items() if state == "dead")

    def may_end(self, node: str) -> bool:
        """Return True if this fault may be the reason that this node's server ended."""
        return node in self.ended or (self.may_die and node in self.nodes)

    @property
    def killed(self) -> frozenset[str]:
        """The nodes whose process this fault ends, or may end.  They are restarted at the last heal.

        Nodes that may stay down are not among them: they were started at the fault's own heal."""
        if self.may_stay_down:
            return frozenset()
        return self.ended | frozenset(self.nodes if self.may_die else ())


SILENT = ("dead", "stopped")


class HeldWindow(NamedTuple):
    """A span of time in which a fault was measured to be in force.

    what: a state in SILENT, or "cut"
    subject: a node, or (source, destination) of a link
    from_ns, to_ns: since the test began
    """

    what: str
    subject: Any
    from_ns: int
    to_ns: int


def silent_processes(record: FaultRecord) -> Iterator[HeldWindow]:
    """Yield the span of each node whose process was measured dead or stopped, as ordered."""
    for node, state in record.ordered.held.states.items():
        if state not in SILENT:
            continue
        shown = [(m, m.states[node]) for m in _until_heal(record) if node in m.states]
        while shown and shown[0][1] != state:
            del shown[0]  # the ordered state may appear with a short delay
        if all(measured == state for _, measured in shown):
            yield from _stretch(state, node, [measurement for measurement, _ in shown])


def cut_links(record: FaultRecord) -> Iterator[HeldWindow]:
    """Yield the span of each directed link that the fault cuts and over which no beacon arrived."""
    for source, destination in record.cut:
        name = f"{source}>{destination}"
        shown = [m for m in _until_heal(record) if name in m.links]
        counts = [m.links[name] for m in shown]
        silent = all(received == 0 for _, received in counts)
        if silent and any(sent > 0 for sent, _ in counts):
            yield from _stretch("cut", (source, destination), shown)


def _stretch(what: str, subject: Any, shown: Sequence[Measurement]) -> Iterator[HeldWindow]:
    if len(shown) > 1:
        yield HeldWindow(what, subject, shown[0].to_ns, shown[-1].from_ns)


def _until_heal(record: FaultRecord) -> Sequence[Measurement]:
    return [m for m in record.measured if m.phase != "heal"]
