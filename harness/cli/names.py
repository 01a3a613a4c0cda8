"""`list`: every name that a user may type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from workloads.workload import Workload


@click.command(name="list", short_help="List workloads, nemeses and their targets, backends, subjects, planted bugs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option(
    "--subject",
    metavar="FILE",
    help="A system of your own: list its workloads and the faults on its named processes, too.",
)
def list_names(as_json: bool, subject: str | None) -> None:
    """List workloads, nemeses and what each can be aimed at, backends, subjects, planted bugs, and findings."""
    names = known_names(subject)
    if as_json:
        click.echo(json.dumps(names, indent=1))
        return
    width = max(len(name) for rows in names.values() for name in rows)
    for kind, rows in names.items():
        click.secho(kind, bold=True)
        for name, summary in rows.items():
            click.echo(f"  {name:<{width}}  {summary}")
        click.echo()


def known_names(own: str | None = None) -> dict[str, dict[str, str]]:
    """Kind of name -> name -> summary.  own: a system whose workloads and named processes are listed, too.

    Raises WrongSpec if that is no system."""
    from checkers.run_quality.criteria.waivers import WAIVABLE
    from harness.backends.leftovers import kept_clusters
    from harness.real_systems.clean_runs import CLEAN_RUNS
    from harness.real_systems.known_findings import FINDINGS
    from harness.registry import BACKENDS, SUBJECTS, load_subject
    from nemesis.catalog import KINDS, kind_named, on_processes, summaries

    subjects = [load_subject(name) for name in SUBJECTS]
    on_one_process = on_processes(load_subject(own).processes) if own else {}
    kinds = [*KINDS.values(), *map(kind_named, on_one_process)]
    kept = {Path(one.folder).name: one.why_stale or f"up since {one.since}: {one.title}" for one in kept_clusters()}
    return {
        **({"kept clusters": kept} if kept else {}),
        "workloads": {name: kind.summary for name, kind in _kinds(own).items()},
        "nemeses": {**summaries(), **on_one_process},
        "targets": {f"{kind.name} {name}": target.summary for kind in kinds for name, target in kind.targets.items()},
        "parameters of workloads": {
            f"{name} {parameter}": f"{value:g} by default"
            for name, kind in _kinds(own).items()
            for parameter, value in kind.parameters.items()
        },
        "demands to waive": {name: ", ".join(covers) or "availability" for name, covers in WAIVABLE.items()},
        "backends": {name: entry.summary for name, entry in BACKENDS.items()},
        "subjects": {subject.name: subject.summary for subject in subjects},
        "bugs": {
            f"{subject.name}/{bug.name}": f"{bug.summary} (found by {bug.found_by}"
            + ("" if bug.in_containers else ", in simulation only")
            + ")"
            for subject in subjects
            for bug in subject.bugs.values()
        },
        "findings": {name: f"{finding.system}: {finding.summary}" for name, finding in FINDINGS.items()},
        "clean runs": {name: f"{run.system}: {run.configuration}" for name, run in CLEAN_RUNS.items()},
    }


def _kinds(own: str | None) -> dict[str, type[Workload]]:
    """Name -> each workload, those of the file of a system first."""
    from harness.registry import WORKLOADS, load, load_subject, own_workloads

    known: dict[str, type[Workload]] = own_workloads(load_subject(own)) if own else {}
    return {**known, **{name: load(target) for name, target in WORKLOADS.items()}}
