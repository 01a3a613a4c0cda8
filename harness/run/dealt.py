"""The schedule that a run plays: a file's, or the one its nemesis deals, and what a backend must offer for it."""

from __future__ import annotations

from pathlib import Path

from harness.run.schedules import read_schedule
from harness.spec import CLIENT_NODES, Spec
from nemesis.catalog import kind_named, kinds_of
from nemesis.cluster import CLIENT_PROCESSES
from nemesis.deck import deal
from nemesis.faults import Card
from nemesis.schedules import Schedule
from system_under_test.subject import Declares


def dealt(spec: Spec, declares: Declares, time_limit_s: float | None = None) -> list[Card]:
    """The schedule of this run, or of one of another length; none where the subject has nothing to break.

    A subject that does not report who leads gets no card that names the leader: such a card would only be skipped."""
    if not declares.faults:
        return []
    limit_s = spec.time_limit_s if time_limit_s is None else time_limit_s
    return deal(spec.nemesis, spec.servers, limit_s, spec.rng("deck"), leaders=declares.leaders)


def schedule_of(spec: Spec, declares: Declares) -> Schedule:
    """What the nemesis of this run plays.  Raises BadSchedule for a schedule file that cannot be used."""
    if spec.schedule is not None:
        return read_schedule(Path(spec.schedule), (*spec.servers, *CLIENT_NODES))
    return Schedule(tuple(dealt(spec, declares)), {})


def capabilities_of(spec: Spec) -> frozenset[str]:
    """What the kinds of fault of this run need of its backend.  Raises BadSchedule.

    Of what only some targets need, clients in processes of their own are named too: they cost something on every node.
    """
    if spec.schedule is None:
        kinds = kinds_of(spec.nemesis)
    else:
        kinds = [kind_named(card.kind) for card in read_schedule(Path(spec.schedule)).cards]
    needs = {need for kind in kinds for need in kind.needs}
    of_targets = {need for kind in kinds for target in kind.targets.values() for need in target.needs}
    return frozenset(needs | (of_targets & {CLIENT_PROCESSES}))
