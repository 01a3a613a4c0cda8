"""Rejects a wrong run before its nodes are created, and chooses its backend and its schedule.

Each rejection is one sentence (`WrongSpec`, `BadSchedule`) that gives the error and the correction.  Nothing that only
judging needs is imported here, so a rejection is immediate.

*Backend.*  The kinds of fault that a system and a backend allow, and the nemesis `all` that stands for all of them.

*Schedule.*  A file's, or the one that the nemesis deals; and the capabilities that a backend must offer for it.

A file is one that a user wrote, or the `schedule.json` of an earlier run.  A card without a resolved fault is resolved
again: against the leader it finds the node that leads then.  A card with one hits the nodes and links that it names.
Without a file, the deck deals cards by the situations that the faults have met so far (`Dealing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from checkers.catalog import wrong_names
from checkers.record.faults import Card, FaultRecord
from checkers.record.files import BrokenFile, regular
from checkers.sealing.manifest import WrongKey, own_key
from harness.backends.backend import ClusterSpec
from harness.registry import WORKLOADS, check_inventory, check_names, load_backend, load_subject, load_workload
from harness.spec import CLIENT_NODES, LIMITS, Spec, WrongSpec
from harness.terminal.progress import Progress
from nemesis.cluster import CLIENT_PROCESSES, Cluster
from nemesis.coverage import FaultCoverage, Look
from nemesis.deck import (
    BadSchedule,
    Dealer,
    Schedule,
    parse_schedule,
)
from nemesis.kind import Kind
from nemesis.kinds import EVERY, KINDS, NONE, kind_named, kinds_of
from system_under_test.own.read_own_system import in_words
from system_under_test.own.subject import Subject
from system_under_test.subject import Bug, Declares, NodeStatus

OPERATIONS_PER_KEY_LEAST = 2.0
"""With fewer operations no two on one key can overlap, and such a run is never valid."""

_LONGEST_OPENING_S = 120


def check_spec(spec: Spec) -> None:
    """Raise WrongSpec or BadSchedule if this run is impossible, or could prove nothing."""
    check_names(spec)
    check_inventory(spec)
    _check_key()
    subject = load_subject(spec)
    if spec.workload not in WORKLOADS:
        _check_own_workload(spec)
    _check_nodes(spec, subject)
    _check_rate(spec)
    _check_faults(spec, subject)
    _check_reach(spec, subject)
    if spec.bug is not None:
        _check_bug(spec, subject.bugs[spec.bug])


def _check_key() -> None:
    try:
        own_key()
    except WrongKey as problem:
        raise WrongSpec(str(problem)) from problem


def _check_own_workload(spec: Spec) -> None:
    workload = load_workload(spec)
    if wrong := wrong_names(workload.checkers):
        raise WrongSpec(f"{Path(spec.workload).name}: {wrong}")
    try:
        requests = [*workload.set_up(), *workload.final()]
    except Exception as problem:
        raise WrongSpec(f"{Path(spec.workload).name}: set_up or final raised {in_words(problem)}") from problem
    for request in requests:
        if wrong := workload.wrong_request(request):
            raise WrongSpec(f"{Path(spec.workload).name}: {wrong}")


def _check_nodes(spec: Spec, subject: Subject) -> None:
    if subject.declares.nodes and spec.nodes < (least := subject.declares.nodes_min):
        raise WrongSpec(f"--nodes must be at least {least} for {subject.name}, not {spec.nodes}: {subject.summary}")


def _check_rate(spec: Spec) -> None:
    operations = spec.rate_hz * spec.time_limit_s
    if spec.rate_hz and operations < OPERATIONS_PER_KEY_LEAST * spec.keys:
        most = int(operations / OPERATIONS_PER_KEY_LEAST)
        raise WrongSpec(
            f"--keys must be at most {most} here, not {spec.keys}: the run invokes {operations:g} operations, "
            f"and every key needs {OPERATIONS_PER_KEY_LEAST:g}"
        )


def _check_faults(spec: Spec, subject: Subject) -> None:
    if spec.schedule is not None:
        if not subject.declares.faults:
            raise WrongSpec(f"subject {subject.name} has no nodes to break, so it cannot play a --schedule")
        _check_schedule(spec, Path(spec.schedule))
    elif spec.nemesis != "none":
        if not subject.declares.faults:
            raise WrongSpec(f"subject {subject.name} has no nodes to break: choose --nemesis none")
        if not dealt(spec, subject.declares):
            raise WrongSpec(_too_short(spec, subject))


def _check_reach(spec: Spec, subject: Subject) -> None:
    """Refuse faults that have no effect on this system, wherever it runs."""
    wanted = sorted(capabilities_of(spec))
    if why := "; ".join(subject.unreachable_by[need] for need in wanted if need in subject.unreachable_by):
        faults = f"--nemesis {spec.nemesis}" if spec.schedule is None else f"the schedule {spec.schedule}"
        raise WrongSpec(f"{faults} cannot be injected: {why}")


def _check_schedule(spec: Spec, path: Path) -> None:
    cards = read_schedule(path, (*spec.servers, *CLIENT_NODES)).cards
    if not cards:
        raise WrongSpec(f"{path}: the schedule holds no card: choose --nemesis none for a run without faults")
    late = [card for card in cards if card.heal_s > spec.time_limit_s]
    if late:
        last_s = max(card.heal_s for card in late)
        raise WrongSpec(
            f"{path}: card {late[0].number} is healed at {late[0].heal_s:g} s, after the --time-limit of "
            f"{spec.time_limit_s:g} s"
            + (f": the schedule needs at least {math.ceil(last_s)}" if last_s <= LIMITS["time_limit_s"][1] else "")
        )


def _too_short(spec: Spec, subject: Subject) -> str:
    longest_s = math.ceil(_LONGEST_OPENING_S * spec.lengthened(subject.declares.failover_s))
    for limit_s in range(math.ceil(spec.time_limit_s), longest_s):
        if dealt(spec, subject.declares, limit_s):
            return (
                f"--time-limit {spec.time_limit_s:g} leaves no time for any fault of nemesis {spec.nemesis}: "
                f"it must be at least {limit_s}, or choose --nemesis none"
            )
    return f"--nodes {spec.nodes} are too few for any fault of nemesis {spec.nemesis}: choose more, or --nemesis none"


def _check_bug(spec: Spec, bug: Bug) -> None:
    if not bug.in_containers:
        raise WrongSpec(f"no run on nodes can show the planted bug {bug.name}: only the tests of the core do")
    chosen = set(spec.nemesis.split(","))
    if bug.shown_by and spec.schedule is None and not any(chosen >= set(shows.split(",")) for shows in bug.shown_by):
        raise WrongSpec(
            f"--nemesis {spec.nemesis} cannot show the planted bug {bug.name}: choose {' or '.join(bug.shown_by)}"
        )


def why_not(spec: Spec, kind: str) -> str:
    """Return why this kind of fault cannot be part of such a run, "" if it can be.  spec: its backend is not "auto"."""
    single = replace(spec, nemesis=kind)
    try:
        check_spec(single)
    except ValueError as problem:
        return str(problem)
    return "" if kind == NONE else lacking(single, spec.backend)


def with_every_kind(spec: Spec) -> tuple[Spec, dict[str, str]]:
    """Return the spec with its nemesis written out, if that is `all`; and the reason why each other kind was left out.

    Raises WrongSpec if no kind of fault fits.
    """
    if spec.nemesis != EVERY:
        return spec, {}
    here = replace(spec, backend=backend_at_hand(spec))
    reasons = {kind: why_not(here, kind) for kind in KINDS}
    fitting = [kind for kind, why in reasons.items() if not why]
    left_out = {kind: why for kind, why in reasons.items() if why}
    if not fitting:
        raise WrongSpec(f"no kind of fault fits: {next(iter(left_out.values()))}")
    return replace(spec, nemesis=",".join(fitting)), left_out


def choose_backend(spec: Spec, progress: Progress) -> str:
    """Return the backend for `auto` on this machine; report it if it is not the first choice.

    Raises WrongSpec if the backend of the spec, or every backend for `auto`, cannot inject the faults.
    """
    chosen = backend_at_hand(spec, progress.say)
    if chosen == "in-process" or not (why := lacking(spec, chosen)):
        return chosen
    if spec.backend == "auto" and chosen != "namespaces" and not lacking(spec, "namespaces"):
        progress.say(f"{why}: the run takes network namespaces")
        return "namespaces"
    raise WrongSpec(f"--nemesis {spec.nemesis} cannot be injected: {why}")


def backend_at_hand(spec: Spec, say: Callable[[str], None] = lambda _: None) -> str:
    """Return the backend of the spec, or the one for `auto` on this machine.

    It may lack capabilities for the faults of this run: `lacking` reports them.
    """
    if not load_subject(spec).declares.nodes:
        return "in-process"
    if spec.backend != "auto":
        return spec.backend
    from harness.backends.docker_engine import why_unavailable

    if (reason := why_unavailable()) is not None:
        say(f"no Docker here ({reason}): the same test runs on network namespaces instead")
        return "namespaces"
    return "docker"


def lacking(spec: Spec, backend: str) -> str:
    """Return what a backend lacks for the kinds of fault of this run, in its own words; "" if it lacks nothing."""
    cluster = load_backend(backend, cluster_of(spec, "choosing", load_subject(spec)))
    missing = [*map(cluster.lacks, sorted(needs_of_kinds(spec)))]
    if spec.schedule is None:
        missing += [_no_target(cluster, kind) for kind in kinds_of(spec.nemesis)]
    return "; ".join(dict.fromkeys(filter(None, missing)))


def cluster_of(spec: Spec, run_id: str, subject: Subject) -> ClusterSpec:
    """Return the nodes of a run, with the needs of its system and its faults."""
    servers = spec.servers if subject.declares.nodes else ()
    wanted = capabilities_of(spec) if servers else frozenset()
    offers = subject.needs, subject.notices_damage, subject.members, subject.versions, subject.processes
    more = (*offers, subject.simulated, spec.inventory or "")
    return ClusterSpec(run_id, servers, CLIENT_NODES, spec.seed, wanted, *more)


def _no_target(cluster: Cluster, kind: Kind) -> str:
    """Return what the first target of a kind lacks, if every one of them lacks something: such a run could only skip
    it."""
    lacks = [next(filter(None, map(cluster.lacks, sorted(target.needs))), "") for target in kind.targets.values()]
    return lacks[0] if lacks and all(lacks) else ""


def dealer_of(spec: Spec, declares: Declares, time_limit_s: float | None = None) -> Dealer | None:
    """Return the dealer of this run's cards, or of those of a run of another length; None if no cards are dealt.

    A subject that does not report who leads gets no card that names the leader: such a card would only be skipped."""
    if not declares.faults or spec.schedule is not None or spec.nemesis == NONE:
        return None
    limit_s = spec.time_limit_s if time_limit_s is None else time_limit_s
    holds = spec.lengthened(declares.failover_s)
    has = {"leaders": declares.leaders, "fsyncs": declares.fsyncs}
    lacking = [name for name, there in has.items() if not there]
    return Dealer(spec.nemesis, spec.servers, limit_s, spec.rng("deck"), lacking=lacking, holds=holds)


def dealt(spec: Spec, declares: Declares, time_limit_s: float | None = None) -> list[Card]:
    """Return the cards of a run that meets all situations that they aim at.  The first cards are those of every run
    with this seed.
    """
    dealer = dealer_of(spec, declares, time_limit_s)
    while dealer is not None and dealer.next():
        pass
    return dealer.cards if dealer is not None else []


def capabilities_of(spec: Spec) -> frozenset[str]:
    """Return the capabilities that the kinds of fault of this run need.  Raises BadSchedule.

    Needs of single targets are left out, except for clients in separate processes, which cost something on every node.
    """
    of_targets = {need for kind in _kinds(spec) for target in kind.targets.values() for need in target.needs}
    return needs_of_kinds(spec) | (of_targets & {CLIENT_PROCESSES})


def needs_of_kinds(spec: Spec) -> frozenset[str]:
    """Return the capabilities without which no fault of some kind of this run can be injected.  Raises BadSchedule."""
    return frozenset(need for kind in _kinds(spec) for need in kind.needs)


def _kinds(spec: Spec) -> Sequence[Kind]:
    if spec.schedule is None:
        return kinds_of(spec.nemesis)
    return [kind_named(card.kind) for card in read_schedule(Path(spec.schedule)).cards]


def read_schedule(path: Path, nodes: Collection[str] = ()) -> Schedule:
    """Return the schedule in this file.  Raises BadSchedule in one sentence that names the file, the card and the
    field.

    nodes: every server and client node of the cluster; a fault that names another is refused.  () = do not check.
    """
    try:
        schedule = parse_schedule(regular(path).read_text())
    except (OSError, UnicodeDecodeError, BrokenFile) as problem:
        raise BadSchedule(f"{path}: it cannot be read: {problem}") from problem
    except BadSchedule as problem:
        raise BadSchedule(f"{path}: {problem}") from problem
    for place, card in enumerate(schedule.cards, start=1):
        fault = schedule.faults.get(card.number)
        named = {*fault.nodes, *(end for link in fault.cut for end in link)} if fault else set()
        if nodes and (strangers := sorted(named - set(nodes))):
            raise BadSchedule(f"{path}: card {place}: its field 'fault' names {strangers[0]!r}, which is no node here")
    return schedule


class Dealing:
    """The source of a run's cards.  schedule: the fixed cards; empty if cards are dealt.  Raises BadSchedule.

    dealt: called with all cards so far, each time that more are dealt."""

    def __init__(self, spec: Spec, declares: Declares, dealt: Callable[[Sequence[Card]], None]) -> None:
        self.coverage = FaultCoverage()
        nodes, file = (*spec.servers, *CLIENT_NODES), spec.schedule
        self.schedule = Schedule((), {}) if file is None else read_schedule(Path(file), nodes)
        self._dealer = dealer_of(spec, declares)
        self._dealt = dealt
        self._servers = spec.servers

    @property
    def breaks_things(self) -> bool:
        return bool(self.schedule.cards) or self._dealer is not None

    def next(self) -> Sequence[Card]:
        """Return the cards of the next play; no cards when no time is left.  Until situations are met, those that cards
        aim at count.
        """
        if self._dealer is None:
            return ()
        cards = self._dealer.next(self.coverage.met or None)
        self._dealt(self._dealer.cards)
        return cards

    def look(self, statuses: Sequence[NodeStatus], records: Collection[FaultRecord]) -> None:
        """Return the nodes' current reports, and every fault so far."""
        in_force = {r.card.number: r.fault for r in records if r.injected_ns >= 0 > r.heal_ordered_ns}
        self.coverage.see(Look(self._servers, CLIENT_NODES, statuses, in_force))
