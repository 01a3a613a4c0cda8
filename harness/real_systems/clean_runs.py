"""Systems that keep their promise under the faults in which others break it: each run must be valid.

The counterpart of a finding shows that one option decides (`known_findings`).  A clean run has no finding beside it: it
shows that the harness stays silent over a system that others wrote.  An invalid one is a false alarm, or a finding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.real_systems.known_findings import EXAMPLES, FINDINGS
from harness.spec import Spec, WrongSpec, unknown_name


@dataclass(frozen=True, slots=True)
class CleanRun:
    """file: of EXAMPLES, with a class behind a colon where the file holds several systems; "" for a bundled subject.
    subject: its name; "" where a file holds it.
    schedule: a file of EXAMPLES, "" to deal from the decks of `nemesis`."""

    system: str
    configuration: str
    workload: str
    nemesis: str
    file: str = ""
    subject: str = ""
    schedule: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, name: str, seed: int, backend: str) -> Spec:
        return Spec(
            subject=self.subject or str(EXAMPLES / self.file),
            workload=self.workload,
            nemesis=self.nemesis,
            schedule=str(EXAMPLES / self.schedule) if self.schedule else None,
            backend=backend,
            seed=seed,
            finding=name,
            clean=True,
            **self.options,
        )


_ETCD = CleanRun(
    system="etcd 3.7.3",
    configuration="three nodes, linearizable reads",
    subject="etcd",
    workload="register",
    nemesis="partition,pause,power",
    options={"nodes": 3, "time_limit_s": 45.0, "rate_hz": 50.0},
)
_ZOOKEEPER = CleanRun(
    system="ZooKeeper 3.8.0",
    configuration="three nodes, a reader writes before it reads",
    file="zookeeper.py",
    workload="register",
    nemesis="partition,pause,kill",
    options={"nodes": 3, "time_limit_s": 60.0, "rate_hz": 4.0, "keys": 4, "concurrency": 12},
)

CLEAN_RUNS: Mapping[str, CleanRun] = {
    "etcd-register": _ETCD,
    "etcd-set": replace(_ETCD, workload="set"),
    "etcd-lists": replace(
        _ETCD,
        configuration="three nodes, transactions that compare the revisions of what they read",
        workload="list-append",
    ),
    "zookeeper-register": _ZOOKEEPER,
    "zookeeper-set": replace(_ZOOKEEPER, workload="set"),
    "postgres-bank": CleanRun(
        system="PostgreSQL 15",
        configuration="one node, all transactions SERIALIZABLE",
        file="postgresql.py",
        workload="bank",
        nemesis="partition,power",
        schedule="schedules/power_loss_at_fsync.json",
        options={"nodes": 1, "time_limit_s": 50.0, "rate_hz": 50.0, "keys": 5},
    ),
}


def names_of_runs() -> list[str]:
    """The findings, and behind them the clean runs."""
    return [*FINDINGS, *CLEAN_RUNS]


def spec_of(name: str, seed: int, backend: str, clean: bool) -> Spec:
    """The run of a finding; with `clean` its counterpart, or a clean run.  Raises WrongSpec where there is none."""
    if name in FINDINGS:
        if clean and FINDINGS[name].clean is None:
            raise WrongSpec(f"finding {name} has no clean counterpart")
        return FINDINGS[name].spec(name, seed, backend, clean)
    if name not in CLEAN_RUNS:
        raise WrongSpec(unknown_name("finding", name, names_of_runs()))
    if not clean:
        raise WrongSpec(f"{name} is a clean run, in which nothing may be found; call it with --clean")
    return CLEAN_RUNS[name].spec(name, seed, backend)


def clean_in_words(name: str) -> str:
    """Say in words what a clean run or a counterpart runs."""
    if name in CLEAN_RUNS:
        return f"{CLEAN_RUNS[name].system}: {CLEAN_RUNS[name].configuration}"
    counterpart = FINDINGS[name].clean
    return f"{FINDINGS[name].system}, but {counterpart.words if counterpart else 'as it is'}"
