"""The nightly campaign: every test and every planted bug over several seeds, and one page that sums them up.

A clean run must be valid, and every falsified row of it must be noticed (`checkers.judging.mutation`).  A planted bug
counts as found only if its own checker is invalid with a witness of the planted mechanism: a bug that is found for
another reason is a bug that was missed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from harness.campaign.child_run import run_child
from harness.judge.judge_run import falsify
from harness.registry import load_subject, offered_workloads
from harness.run.kinds_that_fit import with_every_kind
from harness.spec import Spec
from nemesis.catalog import EVERY, KINDS
from system_under_test.subject import Bug


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the campaign."""

    nemesis: str
    subject: str
    seed: int
    bug: str | None = None
    workload: str = Spec().workload
    nodes: int = Spec().nodes
    rate_hz: float = Spec().rate_hz

    @property
    def title(self) -> str:
        workload = f" {self.workload}" if self.workload != Spec().workload else ""
        return f"test-{self.nemesis} {self.subject}{workload}" + (f" with {self.bug}" if self.bug else "")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended.  as_expected: valid if clean, found if a bug was planted."""

    job: Job
    exit_code: int
    verdict: str
    as_expected: bool
    words: str
    folder: Path | None
    seconds: float


NODES = (5, 4, 3)
"""Sizes of the clean clusters, seed by seed: a majority of an even number is one more than half."""

OTHER_RATE_HZ = 50.0
"""Operations per second of workloads over larger objects than registers."""


def plan(seeds: Sequence[int], parts: Sequence[str], backend: str = "auto") -> Iterator[Job]:
    """The jobs of a campaign, seed by seed.  parts: of "clean", "peer", "bugs", "canary".

    A clean system meets every kind of fault that it and the backend allow, each alone, and all at once.  Its other
    workloads meet one kind each, which changes with the seed."""
    kraft = load_subject("kraft")
    systems = {"clean": "kraft", "peer": "etcd"}
    every = {
        system: with_every_kind(Spec(subject=system, nemesis=EVERY, backend=backend))[0].nemesis
        for part, system in systems.items()
        if part in parts
    }
    for seed in seeds:
        if "canary" in parts:
            for bug in (None, *load_subject("canary").bugs):
                yield Job("none", "canary", seed, bug)
        for system, kinds in every.items():
            for nemesis in dict.fromkeys((*kinds.split(","), kinds)):
                yield Job(nemesis, system, seed, nodes=NODES[seed % len(NODES)])
            yield from _other_workloads(system, kinds.split(","), seed)
        if "bugs" in parts:
            for name, planted in kraft.bugs.items():
                shown = next((shows for shows in planted.shown_by if KINDS.keys() >= set(shows.split(","))), None)
                if planted.in_containers and shown is not None:
                    yield Job(shown, "kraft", seed, name, planted.workloads[0])


def _other_workloads(system: str, kinds: Sequence[str], seed: int) -> Iterator[Job]:
    for number, workload in enumerate(offered_workloads(load_subject(system))):
        if workload != Spec().workload:
            kind = kinds[(number + seed) % len(kinds)]
            yield Job(kind, system, seed, None, workload, NODES[seed % len(NODES)], OTHER_RATE_HZ)


def found(bug: Bug, results: Mapping[str, Any]) -> bool:
    """True if the planted bug was found by the checker, and through the mechanism, that it was planted for."""
    entry = results["checkers"].get(bug.found_by)
    if entry is None or entry["verdict"] != "invalid":
        return False
    return any(w["kind"] in bug.witness_kinds for w in entry["witness"])


def run_job(job: Job, results: Path, options: Sequence[str]) -> Ended:
    """Run one job as a process of its own, as a user would."""
    words = ["run", "--nemesis", job.nemesis, "--subject", job.subject, "--workload", job.workload]
    words += ["--seed", str(job.seed), "--nodes", str(job.nodes), "--rate", f"{job.rate_hz:g}", *options]
    if job.bug:
        words += ["--bug", job.bug]
    if job.subject == "canary":
        words += ["--backend", "auto", "--time-limit", "5", "--rate", "2000"]
    child = run_child(words, results, results / "campaign.log")
    code, folder, seconds = child.exit_code, child.judged, child.seconds
    if folder is None:
        return Ended(job, code, "none", False, "the harness failed; see campaign.log", child.folder, seconds)
    outcome = json.loads((folder / "results.json").read_text())
    summary, ok = outcome.get("summary", ""), _as_expected(job, code, outcome)
    if ok and job.bug is None and (unnoticed := [m.name for m in falsify(folder) if not m.noticed]):
        ok, summary = False, f"falsified rows that no checker noticed: {', '.join(unnoticed)}"
    return Ended(job, code, outcome["verdict"], ok, summary, folder, seconds)


def campaign(
    seeds: Sequence[int], parts: Sequence[str], results: Path, options: Sequence[str], console: Console, backend: str
) -> int:
    """Run all jobs, write `campaign.json` and `index.html` into `results`; 0 if every job ended as expected."""
    from harness.report.campaign_page import render_campaign

    results.mkdir(parents=True, exist_ok=True)
    jobs = list(plan(seeds, parts, backend))
    ended: list[Ended] = []
    console.print(f"{len(jobs)} runs of about {Spec().time_limit_s + 30:.0f} s each", highlight=False)
    for number, job in enumerate(jobs, 1):
        end = run_job(job, results, options)
        ended.append(end)
        mark = "[green]as expected[/]" if end.as_expected else "[bold red]NOT AS EXPECTED[/]"
        console.print(
            f"{number:3}/{len(jobs)} {job.title:<42} seed {job.seed:<8} exit {end.exit_code} {end.verdict:<8} {mark} "
            f"({end.seconds:.0f} s)",
            highlight=False,
        )
        (results / "campaign.json").write_text(json.dumps([_to_json(e, results) for e in ended], indent=1) + "\n")
        render_campaign([e.folder for e in ended if e.folder is not None], results / "index.html")
    missed = [e for e in ended if not e.as_expected]
    console.print(f"{len(ended) - len(missed)} of {len(ended)} as expected; summary: {results / 'index.html'}")
    return 1 if missed else 0


def _as_expected(job: Job, code: int, results: Mapping[str, Any]) -> bool:
    if job.bug is None:
        return code == 0
    return code == 1 and found(load_subject(job.subject).bugs[job.bug], results)


def _to_json(end: Ended, results: Path) -> dict[str, Any]:
    job = end.job
    return {
        "nemesis": job.nemesis,
        "workload": job.workload,
        "subject": job.subject,
        "seed": job.seed,
        "bug": job.bug,
        "exit_code": end.exit_code,
        "verdict": end.verdict,
        "as_expected": end.as_expected,
        "words": end.words,
        "folder": str(end.folder.relative_to(results.resolve())) if end.folder else None,
        "seconds": round(end.seconds, 1),
    }
