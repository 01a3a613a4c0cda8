"""Faults as data, and the record each leaves behind.

A schedule is a list of `Card`s: what to inject, when, and for how long.  It is plain JSON, so the same file runs on
every backend.  The meaning of a card for *this* cluster (its current leader) is determined at injection.  The resolved
`Fault` is recorded, so that a run can be replayed exactly.

Every kind of fault uses these same values.  `nemesis.kinds` contains everything specific to a kind.  A `Copy` of a data
directory stands beside them, because copies are taken before heals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

AT_TIMES: Mapping[str, bool] = {"at times": True}
"""Metadata of a field that only some records of the current format contain.  Its absence never excuses anything."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One node's data directory, as copied into the run folder.

    copy: number of the copy; all nodes are copied under the same one.  when: "before heal 3", "between heals", "final".
    state: of the process when it was copied: "running", "stopped" or "dead".
    folder: of the copied files, relative to the run folder.
    trace_size_bytes: how long the trace of this node was; -1: not recorded.
    taken_ns: when the copy was complete, since the test began; -1: not recorded.
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
    """Outcome of a fault.  Only INSTALLED, and SKIPPED for a stated reason, let a run be valid."""

    INSTALLED = "installed"
    SKIPPED = "skipped"
    INDETERMINATE = "indeterminate"
    NOT_ACHIEVED = "not achieved"


MAY_DIE = "may_die"
"""Name of a setting: the processes of the fault's nodes may end because of it, which is no violation."""
MAY_STAY_DOWN = "may_stay_down"
"""Name of a setting: these nodes may refuse to start again, until the end of the run."""
DAMAGES_DATA = "damages_data"
"""Name of a setting: from now on the disks of these nodes are no evidence about the system."""
CHANGES_MEMBERS = "changes_members"
"""Name of a setting: the members of the system, and so its majorities, change while it holds."""
WIPES_DISKS = "wiped"
"""Name of a setting: each of these nodes returns with an empty disk while it holds, or at its heal."""
KEPT = "kept"
"""Name of a setting: the unsynced data that the disks of these nodes keep; the rest is lost."""
OLDEST_LOST = "age of the oldest write lost_ms"
"""Name of a measured value: the age of the oldest lost unsynced data."""
LOST_OF = "bytes lost of "
"""Prefix of the name of a measured value: the bytes that a power loss removed from a file, whose name follows."""
_ONE_PROCESS = ":"
"""Separator in the name of a kind: the name of the one process that its faults hit follows, such as in `kill:agent`."""


@dataclass(frozen=True, slots=True)
class Card:
    """One entry of a schedule.  at_s, heal_s: seconds since the main phase began.

    number: unique within the schedule.  kind: a name of `nemesis.kinds.KINDS`.  name: one of that kind's targets.
    like: number of an earlier card whose resolved fault is repeated, or, by a card of another kind or target, whose
        node takes the place of the leader: both are parts of one fault.  0 = resolve anew.
    after, moment: at `at_s` it begins to wait for this moment (`nemesis.coverage`) of what the earlier card
    `after` has set off; 0 and "" = it does not wait.
    until, until_of, until_s: it is healed as soon as this moment of what the card `until_of` has set off came, plus
    `until_s` seconds, and at `heal_s` at the latest; "" = at `heal_s`.
    line, line_nth, line_of: from `at_s` on it waits for the n-th such line that a server prints, and is healed as much
    later: a name of the system's `moments`, a regular expression, or "any".  line_of: "leader" or "follower", which
    must have printed it; "" = any server, which then takes the place of the leader.
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
    """Expected measurements. states: node -> process state. values: name -> (minimum, maximum)."""

    states: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ordered:
    """Expected measurements while the fault holds, and after its heal.  Links need no entry: `Fault.cut` names them."""

    held: Condition = field(default_factory=Condition)
    healed: Condition = field(default_factory=Condition)


@dataclass(frozen=True, slots=True)
class Fault:
    """A resolved fault.  words: one sentence for a reader.  nodes: the nodes it hits.  cut: directed links that lose
    every packet.  settings: what else its kind needs to carry it out; plain JSON.
    leader: who led when it was resolved, None if no node did: it says in which roles the fault hit its nodes."""

    kind: str
    words: str
    nodes: tuple[str, ...] = ()
    cut: frozenset[Link] = frozenset()
    settings: Mapping[str, Any] = field(default_factory=dict)
    leader: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fault as a schedule file holds it."""
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

    phase: "inject", "hold", "before heal" or "heal".  links: "a>b" -> (beacons sent, beacons received).
    also_cut: links that other faults cut during all of that time.  unsettled: links whose order changed meanwhile.
    problems: why something could not be measured, in words.
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
    """A summary of measurements.  links: "a>b" -> (beacons sent, received); states: node -> process state."""

    verdict: str  # "as ordered", "not as ordered", "indeterminate"
    links: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()  # deviations from the order, in words


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """Everything known of one fault.  Times are ns since the test began; -1 = did not happen.

    kind: of the fault, as in `card`.  leader, epoch: who led when the card was resolved, if a node did.
    ordered: what measurements must show.
    injected_ns: when the order had been carried out.  apply_ms: how long that took.
    measured: every measurement, from which `checkers.run_quality.faults_installed` computes what became of the fault.
    achieved, reason, lapsed_ns: what it computed when the record was last changed.
    over_budget: with the faults before it, it cost more than a minority of servers what they had fsynced.
    impossible: it was skipped because no fault of its kind can be carried out on this system here.
    inject_proof, heal_proof: summaries for a reader.
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
        """Earliest begin of the fault: an order may take effect before it returns.  -1: it was not carried out."""
        return self.injected_ns - int(max(self.apply_ms, 0.0) * 1e6) if self.injected_ns >= 0 else -1

    @property
    def may_die(self) -> bool:
        """The processes of its nodes may end because of it, and that is no violation."""
        return self.settings.get(MAY_DIE) is True

    @property
    def may_stay_down(self) -> bool:
        """These processes may refuse to start again, until the end of the run."""
        return self.settings.get(MAY_STAY_DOWN) is True

    @property
    def damages_data(self) -> bool:
        """From its begin on, the disks of its nodes are no evidence of what the system does."""
        return self.settings.get(DAMAGES_DATA) is True

    @property
    def wipes_disks(self) -> bool:
        """Its nodes come back with empty disks."""
        return self.settings.get(WIPES_DISKS) is True

    @property
    def loses_unsynced(self) -> bool:
        """The disks of its nodes lose what was not fsynced."""
        return KEPT in self.settings

    @property
    def changes_members(self) -> bool:
        """Return whether its begin and its heal change the members of the system."""
        return self.settings.get(CHANGES_MEMBERS) is True

    @property
    def hits_one_process(self) -> bool:
        """It hits one named process of its servers, which may have several."""
        return _ONE_PROCESS in self.card.kind

    @property
    def carried_out(self) -> bool:
        return self.injected_ns >= 0

    @property
    def healed(self) -> bool:
        return self.healed_ns >= 0

    def end_ns(self, otherwise_ns: int) -> int:
        """Return the time of its heal.  otherwise_ns: the end of a fault that was never healed."""
        return self.healed_ns if self.healed else otherwise_ns

    def in_force(self, from_ns: int, to_ns: int) -> bool:
        """Return whether the fault was in force at some moment of this span, both ends included, by inject and heal."""
        return self.carried_out and self.began_ns <= to_ns and (not self.healed or self.healed_ns >= from_ns)

    @property
    def ended(self) -> frozenset[str]:
        """The nodes whose server it was to end."""
        return frozenset(node for node, state in self.ordered.held.states.items() if state == "dead")

    def may_end(self, node: str) -> bool:
        """Return whether the end of this node's server may have been ordered by this fault."""
        return node in self.ended or (self.may_die and node in self.nodes)

    @property
    def killed(self) -> frozenset[str]:
        """The nodes whose process this fault ends, or may end: they are started again at the last heal.

        A node that may stay down was started at the fault's own heal, and is not started once more."""
        if self.may_stay_down:
            return frozenset()
        return self.ended | frozenset(self.nodes if self.may_die else ())


SILENT = ("dead", "stopped")


class HeldWindow(NamedTuple):
    """what: a state in SILENT, or "cut".  subject: a node, or (source, destination) of a link.  from_ns, to_ns: since
    the test began."""

    what: str
    subject: Any
    from_ns: int
    to_ns: int


def silent_processes(record: FaultRecord) -> Iterator[HeldWindow]:
    """Yields the stretch of each node whose process was measured dead or stopped, as ordered."""
    for node, state in record.ordered.held.states.items():
        if state not in SILENT:
            continue
        shown = [(m, m.states[node]) for m in _until_heal(record) if node in m.states]
        while shown and shown[0][1] != state:
            del shown[0]  # a change may take a moment to show
        if all(measured == state for _, measured in shown):
            yield from _stretch(state, node, [measurement for measurement, _ in shown])


def cut_links(record: FaultRecord) -> Iterator[HeldWindow]:
    """Yields the stretch of each directed link that the fault cuts and over which no beacon came."""
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
