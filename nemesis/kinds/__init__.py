"""The table of all kinds of fault, by name.  A new kind is one file in this folder and one entry in KINDS."""

from __future__ import annotations

from collections.abc import Iterable

from nemesis.kind import Kind
from nemesis.kinds import clock, combined, disks, membership, packets, partition, processes, versions
from nemesis.kinds.processes import KINDS_OF_PROCESSES, kind_on_process

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        partition.KIND,
        packets.KIND,
        processes.PAUSE,
        processes.KILL,
        processes.STOP,
        disks.POWER,
        disks.DISK_ERRORS,
        disks.DAMAGE,
        membership.KIND,
        versions.KIND,
        versions.UPGRADE,
        clock.KIND,
        combined.PAST,
        combined.SHORT,
        combined.MOMENT,
        combined.FSYNCGATE,
    )
}

NONE = "none"
"""Name of the nemesis that injects no fault."""
EVERY = "all"
"""Name that stands for every kind of fault that a system and a backend allow
(`harness/run/refused_before_start.py`).
"""


def kind_named(name: str) -> Kind:
    """Return the kind with this name.  Raises ValueError, with a message of one sentence, for an unknown name."""
    kind = KINDS.get(name) or kind_on_process(name)
    if kind is None:
        raise ValueError(f"there is no kind of fault {name!r}; there are {', '.join(KINDS)}{_one_process()}")
    return kind


def kinds_of(nemesis: str) -> list[Kind]:
    """Return the kinds of a `--nemesis` such as "partition,kill:agent"; [] for "none".  Raises ValueError with a
    message of one sentence.
    """
    if nemesis == NONE:
        return []
    names = [name.strip() for name in nemesis.split(",")]
    if alone := {NONE, EVERY} & set(names):
        raise ValueError(f"nemesis {alone.pop()!r} cannot be combined with others")
    if unknown := [name for name in names if not is_kind(name)]:
        known = ", ".join((NONE, *KINDS))
        raise ValueError(f"there is no nemesis {unknown[0]!r}; there are {known}{_one_process()}")
    return [kind_named(name) for name in dict.fromkeys(names)]


def dealt_by(nemesis: str) -> str:
    """Return the names of the kinds of fault that a nemesis injects, joined by commas."""
    kinds = () if nemesis in (NONE, EVERY) else kinds_of(nemesis)
    return ",".join(dict.fromkeys(name for kind in kinds for name in kind.parts or (kind.name,))) or nemesis


def is_kind(name: str) -> bool:
    """Return True if a kind of fault has this name.  The check ignores whether the system has the process in a name
    such as `kill:agent`.
    """
    return name in KINDS or kind_on_process(name) is not None


def on_processes(processes: Iterable[str]) -> dict[str, str]:
    """Return name -> summary of every kind that acts on only one of these processes."""
    kinds = [kind_named(f"{kind}:{process}") for process in processes for kind in KINDS_OF_PROCESSES]
    return {kind.name: kind.summary for kind in kinds}


def summaries() -> dict[str, str]:
    """Return nemesis -> summary of its faults, for lists and help texts."""
    of_kinds = {name: kind.summary for name, kind in KINDS.items()}
    return {NONE: "nothing is broken", EVERY: "every kind that the system and the backend allow", **of_kinds}


def _one_process() -> str:
    return f", and {', '.join(f'{kind}:PROCESS' for kind in KINDS_OF_PROCESSES)} for one process of a server"
