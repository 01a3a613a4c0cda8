"""The golden corpus: about 70 runs and histories with known verdicts, and the differences between two revisions.

    python -m bench.golden make OLD                      # at one revision: run and judge all cases (20 minutes)
    python -m bench.golden make NEW --like OLD           # at another one: the same cases with the same seeds
    python -m bench.golden judge OLD --into NEW          # or judge the runs of OLD again, without running anything
    python -m bench.golden compare OLD NEW               # exit code 1 if anything differs

A case is a run without planted bug on each backend and system, a planted bug, the mutants of a valid run, or a history
from another source (`--histories`: a folder of folders, each named after a model).  Runs on the simulator are
reproducible byte for byte, so all lines about them must be equal.  For other runs, the verdict and the checker that
finds a planted bug must be equal.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from checkers.base.results import as_object, read_results
from harness.registry import SUBJECTS, load_subject

ROOT = Path(__file__).parents[1]
SUMMARY = "summary.json"
SEEDS_MAX = 4
SHORT = ("--time-limit", "15", "--nodes", "3", "--rate", "100", "--op-timeout", "0.7")
BY_SEED = ("simulator",)
"""Backends on which the seed determines every byte of a run."""
UNDER_FAULTS = ("partition", "kill", "pause", "power", "disk", "clock", "packets", "partition,kill,pause")
MODELS = {"etcd": "cas-register", "elle": "list-append"}
"""Folder of histories -> model of its files, if it is not the folder's name."""


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One run. options: of `run`. bug: the planted bug that must be found; "" if there is none."""

    name: str
    options: tuple[str, ...]
    bug: str = ""

    @property
    def repeats(self) -> bool:
        return any(backend in self.options for backend in BY_SEED)


def cases() -> Iterator[GoldenCase]:
    """Yield every case that this machine can run."""
    for nemesis in UNDER_FAULTS:
        yield GoldenCase(f"clean-{nemesis.replace(',', '-')}", ("--nemesis", nemesis, "--backend", "simulator", *SHORT))
    for subject in ("kraft-brokers", "kraft-voters"):
        yield GoldenCase(f"clean-{subject}", ("--subject", subject, "--backend", "simulator", *SHORT))
    for backend in ("docker", "namespaces"):
        for subject in ("kraft", "etcd"):
            name = f"clean-{subject}-{backend}"
            yield GoldenCase(name, ("--subject", subject, "--nemesis", "partition", "--backend", backend, *SHORT))
    for example, workload in (
        ("tcp_register.py", "register"),
        ("sqlite.py", "list-append"),
        ("redis_sentinel.py", "set"),
    ):
        own = ("--subject", str(ROOT / "examples" / example), "--workload", workload, "--backend", "namespaces")
        yield GoldenCase(f"own-{Path(example).stem}", own)
    yield GoldenCase("clean-canary", ("--subject", "canary", "--nemesis", "none", "--time-limit", "5"))
    on_simulator, on_none = ("--backend", "simulator", *SHORT), ("--nemesis", "none", "--time-limit", "5")
    for tested, system in ((name, load_subject(name)) for name in SUBJECTS):
        for bug in (bug for bug in system.bugs.values() if bug.in_containers):
            if system.simulated or not system.declares.nodes:
                where = on_simulator if system.declares.nodes else on_none
                yield GoldenCase(f"{tested}-{bug.name}", ("--subject", tested, "--bug", bug.name, *where), bug.name)


@click.group()
def main() -> None:
    """Make, judge again and compare golden corpora."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--only", multiple=True, help="Only cases whose name contains this; may be repeated.")
@click.option("--like", type=click.Path(exists=True, path_type=Path), help="Use the seeds of this corpus.")
@click.option("--histories", type=click.Path(exists=True, path_type=Path), help="Judge the histories in this folder.")
def make(folder: Path, only: tuple[str, ...], like: Path | None, histories: Path | None) -> None:
    """Run every case, store its run in FOLDER, and write FOLDER/summary.json."""
    folder.mkdir(parents=True, exist_ok=True)
    seeds = {name: case["seed"] for name, case in _read(like).items() if "seed" in case} if like else {}
    summary = _read(folder) if (folder / SUMMARY).exists() else {}
    for case in cases():
        if only and not any(word in case.name for word in only):
            continue
        summary[case.name] = _run(case, folder, [seeds[case.name]] if case.name in seeds else range(1, SEEDS_MAX + 1))
        click.echo(f"{case.name}: {summary[case.name]['verdict']}")
        _write(folder, summary)
    if histories is not None:
        summary |= _check(histories)
    mutated = folder / "clean-partition" / "latest"
    if mutated.exists():
        summary["mutants of clean-partition"] = {"verdict": _harness("mutate", str(mutated.resolve()))[0]}
    _write(folder, summary)


@main.command()
@click.argument("old", type=click.Path(exists=True, path_type=Path))
@click.option("--into", type=click.Path(path_type=Path), required=True, help="Folder for the new summary.")
def judge(old: Path, into: Path) -> None:
    """Judge the stored runs of OLD again with the code of this revision."""
    into.mkdir(parents=True, exist_ok=True)
    summary = _read(old)
    for name in [name for name in summary if (old / name / "latest").exists()]:
        run = (old / name / "latest").resolve()
        _harness("analyze", "--trust", str(run))
        summary[name] = {"seed": summary[name]["seed"], "repeats": True, **_verdicts(run)}
        click.echo(f"{name}: {summary[name]['verdict']}")
    _write(into, summary)


@main.command()
@click.argument("old", type=click.Path(exists=True, path_type=Path))
@click.argument("new", type=click.Path(exists=True, path_type=Path))
def compare(old: Path, new: Path) -> None:
    """List each verdict, checker, kind of witness, criterion and symptom that differs between OLD and NEW."""
    before, after = _read(old), _read(new)
    differences = 0
    for name in sorted(before.keys() & after.keys()):
        for line in _differences(before[name], after[name]):
            differences += 1
            click.echo(f"{name}: {line}")
    for name in sorted(before.keys() ^ after.keys()):
        click.echo(f"{name}: only in {'OLD' if name in before else 'NEW'}")
    click.echo(f"{differences} differences in {len(before.keys() & after.keys())} cases")
    sys.exit(1 if differences else 0)


def _run(case: GoldenCase, folder: Path, seeds: Any) -> dict[str, Any]:
    """Run a case with one seed after another until its planted bug is found; a case without bug once."""
    seen: dict[str, Any] = {}
    for seed in seeds:
        code, printed = _harness("run", *case.options, "--seed", str(seed), "--results", str(folder / case.name))
        latest = folder / case.name / "latest"
        if not latest.exists():
            return {"seed": seed, "verdict": f"exit code {code}: {printed.strip().splitlines()[-1:]}"}
        seen = {"seed": seed, "repeats": case.repeats, **_verdicts(latest.resolve())}
        if not case.bug or seen["found"]:
            break
    return seen


def _verdicts(run: Path) -> dict[str, Any]:
    """Return a summary of the results of a run: its verdict, the planted bug, and the verdict and kinds of witness of
    each checker.
    """
    found = read_results(run)
    assert found is not None, f"{run} was not judged"
    results = as_object(found)
    checkers = {
        name: sorted({said["verdict"], *(witness["kind"] for witness in said["witness"])})
        for name, said in results["checkers"].items()
    }
    criteria = results["checkers"].get("vacuity", {}).get("details", {}).get("criteria", [])
    return {
        "verdict": results["verdict"],
        "found": bool((results.get("planted") or {}).get("found")),
        "checkers": checkers,
        "criteria missed": sorted(c["name"] for c in criteria if c["demanded"] and not c["met"]),
        "symptom": results.get("symptom", ""),
        "headline": results["summary"],
    }


def _check(histories: Path) -> dict[str, Any]:
    """Judge the histories in all folders of a folder."""
    summary = {}
    for folder in sorted(path for path in histories.iterdir() if path.is_dir()):
        model = MODELS.get(folder.name, folder.name)
        _, printed = _harness("check", "--model", model, *(["--keyed"] if model == "kv" else []), "--json", str(folder))
        for line in (json.loads(line) for line in printed.splitlines() if line.startswith("{")):
            name = str(Path(line["file"]).relative_to(histories))
            kinds = sorted({witness["kind"] for witness in line.get("witness", [])})
            summary[name] = {"verdict": line.get("verdict", "error"), "checkers": {model: kinds}}
    return summary


def _differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    whole = before.get("repeats", True) and after.get("repeats", True)
    for field in ("verdict", "found", *(("criteria missed", "symptom") if whole else ())):
        if before.get(field) != after.get(field):
            yield f"{field}: {before.get(field)} -> {after.get(field)}"
    old, new = before.get("checkers", {}), after.get("checkers", {})
    for checker in sorted(old.keys() | new.keys()) if whole else ():
        if old.get(checker) != new.get(checker):
            yield f"{checker}: {old.get(checker)} -> {new.get(checker)}"


def _harness(*words: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "harness", *words], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def _read(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / SUMMARY).read_text()))


def _write(folder: Path, summary: dict[str, Any]) -> None:
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
