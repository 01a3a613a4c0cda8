"""The commands about the machine: `setup`, `release`, `clean-up`, `list` and `completion`.

`setup` prepares a machine once: Java, compiled kernels, Spark's class archive, the node image.  The two long jobs,
kernels and the image, run concurrently, because they share nothing.  Only kernels that a run needs are compiled; others
are compiled on their first use.  Compiling during a run would take CPU time from the nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.cli.parameters import spec_option
from harness.spec import Spec, WrongSpec
from harness.started import program

_DEFAULT = Spec()
_SHELLS = ("bash", "zsh", "fish")


@click.command()
@spec_option("backend", help_words="Prepare the machine for this backend.")
@spec_option("subject")
@click.option("--all", "everything", is_flag=True, help="Prepare also for `check`, `analyze` and the project's tests.")
def setup(backend: str, subject: str, everything: bool) -> None:
    """Prepare this machine: Java, compiled kernels, Spark's class archive, the node image."""
    from rich.console import Console

    from harness.registry import SUBJECTS, check_names, load_subject

    known = subject if subject in SUBJECTS else _DEFAULT.subject  # a user's own system need not support every workload
    check_names(Spec(backend=backend, subject=known))
    prepare(Console(soft_wrap=True), backend, load_subject(subject).declares.nodes, everything)


@click.command(name="clean-up")
@click.option("--inventory", type=click.Path(), default=None, help="Clean up the hosts of this file instead.")
def clean_up(inventory: str | None) -> None:
    """Remove remains of dead runs.  Live runs and kept clusters are not touched.

    Every run does the same when it begins.  `release` ends kept clusters.
    """
    from dataclasses import asdict

    from harness.backends.leftovers import forget, kept_clusters
    from harness.cli.ending import line_of

    if inventory is not None:
        click.echo("\n".join(_clean_up_hosts(Path(inventory))) or "nothing was left behind")
        return
    words = _swept()
    for kept in kept_clusters():
        if kept.alive:
            words.append(line_of(asdict(kept), ""))
        else:
            forget(kept.run_id)
            words.append(f"removed the record of the kept cluster of {kept.folder}: {kept.why_stale}")
    click.echo("\n".join(words) or "nothing was left behind")


def _swept() -> list[str]:
    """Remove remains of dead runs on this machine.  Return one line for each removed run, and for each object that
    could not be removed."""
    from harness.backends.docker_engine import connect, sweep_dead, why_unavailable
    from harness.backends.namespaces_backend import sweep_folders

    swept = [sweep_folders()] + ([sweep_dead(connect(), 30.0)] if why_unavailable() is None else [])
    words = [f"removed what {name} had left" for one in swept for name in one.removed]
    return words + [left for one in swept for left in one.left]


@click.command()
@click.argument("run_folder", metavar="[RUN]", required=False)
@click.option("--all", "everything", is_flag=True, help="Every kept cluster.")
def release(run_folder: str | None, everything: bool) -> None:
    """End the cluster of RUN, which `run --keep` left up, and remove its containers, networks and processes.

    RUN is the folder of the run, or the beginning of the folder's name.  The folder itself stays.  Without RUN, the
    only kept cluster is released; if there are several, they are listed.
    """
    from dataclasses import asdict

    from harness.backends.leftovers import kept_clusters
    from harness.backends.leftovers import release as let_go
    from harness.cli.ending import line_of

    kept = kept_clusters()
    if run_folder is not None:
        whole = str(Path(run_folder).resolve())
        kept = [one for one in kept if one.folder == whole or Path(one.folder).name.startswith(run_folder)]
        if not kept:
            raise WrongSpec(f"no cluster of {run_folder} is kept; `{program()} release` lists all kept clusters")
    if len(kept) > 1 and not everything:
        click.echo("\n".join(line_of(asdict(one), one.why_stale) for one in kept))
        raise WrongSpec("more than one cluster is kept: name its run, or give --all")
    if not kept:
        click.echo("no cluster is kept")
    failed = False
    for one in kept:
        stale = one.why_stale
        left = [*let_go(one), *(_swept() if stale else [])]
        failed |= bool(left) and not stale
        click.echo(f"{'forgot' if stale else 'released'} the cluster of {one.folder}" + (f": {stale}" if stale else ""))
        click.echo("".join(f"  {words}\n" for words in left), nl=False)
    if failed:
        raise click.exceptions.Exit(3)


def _clean_up_hosts(inventory: Path) -> list[str]:
    """Remove remains of dead runs on the hosts of an inventory.  Return one line for each removed run, and for each
    object that could not be removed."""
    import asyncio  # imported here, so that listings and refusals start fast

    from harness.backends.ssh_inventory import BadInventory, read_inventory
    from harness.backends.ssh_visit import sweep_hosts

    try:
        hosts = read_inventory(inventory)
    except BadInventory as problem:
        raise WrongSpec(str(problem)) from problem
    swept = asyncio.run(sweep_hosts(hosts, f"clean-up-{os.getpid()}"))
    words = [f"removed from {host} what {name} had left" for host, found in swept.items() for name in found.removed]
    return words + [left for found in swept.values() for left in found.left]


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print a script that makes a shell complete commands, options and names.

    \b
    bash:  eval "$(krucible completion bash)"      (in ~/.bashrc)
    zsh:   eval "$(krucible completion zsh)"       (in ~/.zshrc)
    fish:  krucible completion fish | source       (in ~/.config/fish/config.fish)
    """
    from click.shell_completion import get_completion_class

    from harness.cli.main import cli

    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(cli, {}, "krucible", "_KRUCIBLE_COMPLETE").source())


if TYPE_CHECKING:
    from rich.console import Console

    from nemesis.kind import Kind
    from system_under_test.own.subject import Subject
    from workloads.workload import Workload


@click.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@click.option(
    "--subject",
    metavar="FILE",
    help="A system of your own, whose workloads and faults of named processes are listed too.",
)
def list_names(as_json: bool, subject: str | None) -> None:
    """List workloads, nemeses and their targets, backends, subjects, planted bugs, and findings."""
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


def _allows(subject: Subject, kind: Kind) -> bool:
    """Return False if no fault of this kind can affect this system on any backend."""
    from nemesis.cluster import DAMAGES, MEMBERS, VERSIONS

    damages = {need for target in kind.targets.values() for need in target.needs if need in DAMAGES}
    return (
        subject.declares.faults
        and not kind.needs & subject.unreachable_by.keys()
        and (MEMBERS not in kind.needs or subject.members is not None)
        and (VERSIONS not in kind.needs or subject.versions is not None)
        and (not damages or any(DAMAGES[need] in subject.notices_damage for need in damages))
    )


def known_names(own: str | None = None) -> dict[str, dict[str, str]]:
    """Return kind of name -> name -> summary.

    own: file of a user's system.  Its workloads and faults of its named processes are added, and kinds of fault that
        cannot affect it are omitted.
    Raises WrongSpec if the file defines no system.
    """
    from checkers.run_quality.waivers import WAIVABLE
    from harness.backends.leftovers import kept_clusters
    from harness.real_systems import CLEAN_RUNS, FINDINGS
    from harness.registry import BACKENDS, SUBJECTS, load_subject
    from nemesis.kinds import KINDS, kind_named, on_processes, summaries

    subjects = [load_subject(name) for name in SUBJECTS]
    mine = load_subject(own) if own else None
    on_one_process = on_processes(mine.processes) if mine else {}
    barred = {name for name, kind in KINDS.items() if mine and not _allows(mine, kind)}
    kinds = [*(kind for name, kind in KINDS.items() if name not in barred), *map(kind_named, on_one_process)]
    nemeses = {name: words for name, words in summaries().items() if name not in barred}
    kept = {Path(one.folder).name: one.why_stale or f"up since {one.since}: {one.title}" for one in kept_clusters()}
    return {
        **({"kept clusters": kept} if kept else {}),
        "workloads": {name: kind.summary for name, kind in _kinds(own).items()},
        "nemeses": {**nemeses, **on_one_process},
        "targets": {f"{kind.name} {name}": target.summary for kind in kinds for name, target in kind.targets.items()},
        "parameters of workloads": {
            f"{name} {parameter}": f"{value:g} by default"
            for name, kind in _kinds(own).items()
            for parameter, value in kind.parameters.items()
        },
        "parameters of subjects": {
            f"{subject.name} {parameter}": f"{value} by default"
            for subject in [*subjects, *([mine] if mine else [])]
            for parameter, value in subject.parameters.items()
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
    """Return name -> workload.  The workloads of the system's file come first."""
    from harness.registry import WORKLOADS, load, load_subject, own_workloads

    known: dict[str, type[Workload]] = own_workloads(load_subject(own)) if own else {}
    return {**known, **{name: load(target) for name, target in WORKLOADS.items()}}


QUIET_S = 2.0
"""Minimum seconds that a step must take to be reported."""


def prepare(console: Console, backend: str, needs_nodes: bool, everything: bool = False) -> None:
    """Prepare the machine for runs, and print the progress.

    backend: name of a backend, or "auto"
    needs_nodes: True if the subject has nodes, which need the node image
    everything: True to prepare also for `check` and the project's tests
    Raises OSError if Spark cannot be prepared, and BackendUnavailable if `backend` is "docker" and Docker cannot be
    used."""

    def say(words: str) -> None:
        console.print(f"  set-up: {words}", highlight=False, markup=False)

    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        spark = pool.submit(_prepare_spark, everything)
        if needs_nodes and backend in ("auto", "docker"):
            _prepare_image(say, backend)
            if time.monotonic() - began > QUIET_S:
                say(f"the node image is ready after {time.monotonic() - began:.0f} s")
        kernels_s = spark.result()
    if time.monotonic() - began > QUIET_S:
        say(f"kernels were ready after {kernels_s:.0f} s, all after {time.monotonic() - began:.0f} s")


def _prepare_spark(everything: bool) -> float:
    """Prepare Spark and kernels, and return the seconds that this took.  They are prepared in a process of their own,
    because no process can start Spark twice with different archives."""
    began = time.monotonic()
    words = [sys.executable, "-P", "-m", "checkers.spark.prepare", *(["--all"] if everything else [])]
    done = subprocess.run(words, check=False)
    if done.returncode:
        raise OSError(f"Spark could not be prepared (exit status {done.returncode}); see the lines above")
    return time.monotonic() - began


def _prepare_image(say: Callable[[str], None], backend: str) -> None:
    from harness.backends.docker_engine import why_unavailable
    from harness.backends.docker_image import ensure_image

    reason = why_unavailable()
    if reason is None:
        ensure_image(say)
    elif backend == "docker":
        from harness.backends.backend import BackendUnavailable

        raise BackendUnavailable(reason)
