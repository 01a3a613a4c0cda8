"""The runs of a hunt, grouped by what went wrong.

A signature names what went wrong and under what: the checker and the kind of the violation that lies nearest to the
cause, and the kinds of fault that were injected until it showed.  Runs of one signature probably show one mistake of
the system, and one of them is enough to study it.

A replay is the same test once more, with the same seed.  It has seen the violation again if any of its violations is of
a checker and kind that the first run saw: chance decides which consequence of a mistake shows first.

"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.explanations.kinds.catalog import name_in_words
from harness.plain_words import plural
from harness.spec import Spec


@dataclass(frozen=True, slots=True)
class Signature:
    """faults: the kinds that were injected, in alphabetical order."""

    checker: str
    kind: str
    faults: tuple[str, ...]

    def words(self) -> str:
        """Such as: stale read (linearizability) under kill and partition."""
        return f"{name_in_words(self.kind)} ({self.checker}) under {' and '.join(self.faults) or 'no fault'}"


@dataclass(frozen=True, slots=True)
class HuntRun:
    """One run.  number: of its test in the hunt.  replay: 0 for the first run of the test, else which replay.

    violations: (checker, kind), the nearest to the cause first.  faults: the kinds that were injected until the first
    of them showed.
    rerun: the command that runs the test again.  folder: relative to the log, "" if it was not kept.
    """

    number: int
    replay: int
    test: Mapping[str, Any]
    verdict: str
    violations: tuple[tuple[str, str], ...]
    faults: tuple[str, ...]
    summary: str
    seconds: float
    rerun: str
    folder: str

    @property
    def signature(self) -> Signature | None:
        """None if nothing was violated."""
        return Signature(*self.violations[0], self.faults) if self.violations else None

    def without_folder(self) -> HuntRun:
        return replace(self, folder="")

    @property
    def spec(self) -> Spec:
        return Spec.from_json(dict(self.test))

    def title(self) -> str:
        """What was run, in a few words."""
        spec = self.spec
        rate = f"{spec.rate_hz:g}/s" if spec.rate_hz else "full rate"
        return f"{spec.workload}, {spec.nemesis}, {spec.nodes} nodes, {rate}, seed {spec.seed}"


@dataclass(frozen=True, slots=True)
class SignatureGroup:
    """All first runs of one signature, and the replays of the first of them."""

    signature: Signature
    runs: tuple[HuntRun, ...]
    replays: tuple[HuntRun, ...]

    @property
    def seen_again(self) -> int:
        first = set(self.runs[0].violations)
        return sum(bool(first & set(replay.violations)) for replay in self.replays)

    def words(self) -> str:
        """How often it was seen."""
        again = f"seen again in {self.seen_again} of {len(self.replays)} replays" if self.replays else "not replayed"
        return f"{again}; {plural(len(self.runs), 'test')} of this hunt saw it"


def grouped(runs: Sequence[HuntRun]) -> list[SignatureGroup]:
    """What was found, in the order in which it was found."""
    seen: dict[Signature, list[HuntRun]] = {}
    for run in runs:
        if run.replay == 0 and run.signature is not None:
            seen.setdefault(run.signature, []).append(run)
    return [
        SignatureGroup(signature, tuple(tests), tuple(replays_of(runs, tests[0].number)))
        for signature, tests in seen.items()
    ]


def replays_of(runs: Sequence[HuntRun], number: int) -> list[HuntRun]:
    """The replays of one test."""
    return [run for run in runs if run.number == number and run.replay]
