"""Findings in systems that nobody here wrote: each is a run with which anyone can see it again.

A finding is found if its checker is invalid, with a witness of one of its kinds: another violation is another finding.
`summary` words it for a user of that system, with the figures of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.spec import Spec

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True, slots=True)
class Finding:
    """words: what happens to a user's data, with {names} of `looked_at`.  published: where it is known from.
    kinds: of witnesses that show it; empty for any."""

    system: str
    configuration: str
    file: str
    workload: str
    nemesis: str
    checker: str
    words: str
    published: str
    kinds: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, seed: int, backend: str) -> Spec:
        return Spec(
            subject=str(EXAMPLES / self.file),
            workload=self.workload,
            nemesis=self.nemesis,
            backend=backend,
            seed=seed,
            **self.options,
        )


FINDINGS: Mapping[str, Finding] = {
    "redis": Finding(
        system="Redis 7.0 with Sentinel",
        configuration="three nodes, down-after-milliseconds 2000, no min-replicas-to-write",
        file="redis_sentinel.py",
        workload="set",
        nemesis="partition",
        checker="set",
        words="Redis acknowledged {acknowledged} elements, and {missing_from_last_read} of them are missing from the "
        "last read: a primary that was cut off took writes, and gave them up when it became a replica again",
        published="Kingsbury 2013, Jepsen: Redis; the documentation of Redis Sentinel",
        options={"nodes": 3, "time_limit_s": 40.0, "rate_hz": 200.0, "keys": 2},
    ),
}


def found(finding: Finding, results: Mapping[str, Any]) -> bool:
    """Whether the results of a run show this very finding."""
    entry = results["checkers"].get(finding.checker) or {}
    if entry.get("verdict") != "invalid":
        return False
    return not finding.kinds or any(witness["kind"] in finding.kinds for witness in entry["witness"])


def in_words(finding: Finding, results: Mapping[str, Any]) -> str:
    """The finding for a user of that system, with the figures of this run."""
    return finding.words.format_map(results["checkers"][finding.checker]["looked_at"])
