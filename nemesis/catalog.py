"""Every kind of fault by its name.  A new kind is one file in `nemesis/kinds` and one entry here."""

from __future__ import annotations

from nemesis.kind import Kind
from nemesis.kinds import clock, damage, disk, kill, membership, packets, partition, pause, power, stop

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        partition.KIND,
        packets.KIND,
        pause.KIND,
        kill.KIND,
        stop.KIND,
        power.KIND,
        disk.KIND,
        damage.KIND,
        membership.KIND,
        clock.KIND,
    )
}

NONE = "none"
"""The nemesis that breaks nothing."""
EVERY = "all"
"""Stands for every kind of fault that a system and a backend allow (`harness/run/kinds_that_fit.py`)."""


def kind_named(name: str) -> Kind:
    """Raises ValueError in one sentence for an unknown name."""
    if name not in KINDS:
        raise ValueError(f"there is no kind of fault {name!r}; there are {', '.join(KINDS)}")
    return KINDS[name]


def kinds_of(nemesis: str) -> list[Kind]:
    """The kinds of a `--nemesis` such as "partition,kill"; [] for "none".  Raises ValueError in one sentence."""
    if nemesis == NONE:
        return []
    names = [name.strip() for name in nemesis.split(",")]
    if alone := {NONE, EVERY} & set(names):
        raise ValueError(f"nemesis {alone.pop()!r} cannot be combined with others")
    if unknown := [name for name in names if name not in KINDS]:
        raise ValueError(f"there is no nemesis {unknown[0]!r}; there are {', '.join((NONE, *KINDS))}")
    return [KINDS[name] for name in dict.fromkeys(names)]


def summaries() -> dict[str, str]:
    """Nemesis -> what it breaks, for lists and help texts."""
    of_kinds = {name: kind.summary for name, kind in KINDS.items()}
    return {NONE: "nothing is broken", EVERY: "every kind that the system and the backend allow", **of_kinds}
