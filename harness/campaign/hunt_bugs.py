"""The hunt: every planted bug with a nemesis that can show it, over several seeds, at one revision of the code.

A run counts as found if the checker that the subject names is invalid, with a witness of the planted mechanism
(`planted` in results.json).  The seconds to find count from the beginning of the main phase.  They end when an online
check of that checker found it.  If none did, they end with the last phase of the run, after which the sealed run is
judged.

What was run is kept in `hunt.json` as each run ends.  A hunt that was broken off goes on where it stood, and a hunt at
another revision begins a folder of its own.
"""

from __future__ import annotations

import fcntl
import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from checkers.base.json_file import mapping, number, sequence
from harness.campaign.child_run import run_child
from harness.registry import load_subject
from harness.spec import WrongSpec
from nemesis.catalog import KINDS

HUNT, TABLE, LOCK = "hunt.json", "hunt.md", ".lock"


@dataclass(frozen=True, slots=True)
class Prey:
    """One run of a hunt."""

    bug: str
    nemesis: str
    workload: str
    seed: int


@dataclass(frozen=True, slots=True)
class Caught:
    """How a run of a hunt ended.  seconds: to find the bug, -1 if it was not found.  words: why it counts so.
    folder: of the run, "" if there is none."""

    bug: str
    nemesis: str
    workload: str
    seed: int
    found: bool
    seconds: float
    words: str
    folder: str

    @property
    def prey(self) -> Prey:
        return Prey(self.bug, self.nemesis, self.workload, self.seed)


def preys(subject: str, bugs: Sequence[str], seeds: Iterable[int], nemesis: str = "") -> Iterator[Prey]:
    """The runs of a hunt, seed by seed.  bugs: empty for all that a run on nodes can show.

    nemesis: instead of the first that the subject names for a bug.  Raises ValueError for a bug that cannot be hunted.
    """
    known = load_subject(subject).bugs
    for name in bugs:
        if name not in known or not known[name].in_containers:
            raise ValueError(f"subject {subject} has no planted bug {name!r} that a run on nodes can show")
    for seed in seeds:
        for name, bug in known.items():
            shown_by = nemesis or next((n for n in bug.shown_by if KINDS.keys() >= set(n.split(","))), "")
            if bug.in_containers and shown_by and name in (bugs or known):
                yield Prey(name, shown_by, bug.workloads[0], seed)


def hunt(subject: str, wanted: Sequence[Prey], folder: Path, options: Sequence[str], console: Console) -> list[Caught]:
    """Run what was not run yet, and keep the table up to date.  Returns what became of all of `wanted`, in order.

    Raises WrongSpec while another hunt works in this folder: each would take the other's runs for its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy = f"another hunt works in {folder}: wait for its end, or name another folder with --results"
            raise WrongSpec(busy) from None
        return _hunt(subject, wanted, folder, options, console)


def _hunt(subject: str, wanted: Sequence[Prey], folder: Path, options: Sequence[str], console: Console) -> list[Caught]:
    known = {caught.prey: caught for caught in read(folder)}
    for place, prey in enumerate(wanted, 1):
        if prey not in known:
            known[prey] = _run(subject, prey, folder, options)
            _write(folder, list(known.values()))
        caught = known[prey]
        became = f"found after {caught.seconds:.0f} s" if caught.found else f"NOT FOUND: {caught.words}"
        console.print(f"{place:3}/{len(wanted)} {prey.bug:<28} {prey.nemesis:<16} seed {prey.seed:<8} {became}")
    return [known[prey] for prey in wanted]


def read(folder: Path) -> list[Caught]:
    """What a hunt has found so far; empty if there was none."""
    path = folder / HUNT
    return [Caught(**row) for row in json.loads(path.read_text())] if path.exists() else []


def table(caught: Iterable[Caught]) -> str:
    """Markdown: for each bug and nemesis found k of n, and the seconds to find (median, slowest)."""
    groups: dict[tuple[str, str], list[Caught]] = {}
    for one in caught:
        groups.setdefault((one.bug, one.nemesis), []).append(one)
    lines = ["| planted bug | nemesis | found | median s | slowest s |", "| --- | --- | --- | --- | --- |"]
    for (bug, nemesis), runs in sorted(groups.items()):
        seconds = [run.seconds for run in runs if run.found]
        times = f"{statistics.median(seconds):.0f} | {max(seconds):.0f}" if seconds else "- | -"
        lines.append(f"| `{bug}` | {nemesis} | {len(seconds)} of {len(runs)} | {times} |")
    return "\n".join(lines)


def _run(subject: str, prey: Prey, folder: Path, options: Sequence[str]) -> Caught:
    """What the run prints goes to hunt.log."""
    words = ["run", "--subject", subject, "--bug", prey.bug, "--nemesis", prey.nemesis]
    words += ["--workload", prey.workload, "--seed", str(prey.seed), *options]
    run = run_child(words, folder, folder / "hunt.log").judged
    if run is None:
        return Caught(**asdict(prey), found=False, seconds=-1.0, words="the run failed; see hunt.log", folder="")
    results = json.loads((run / "results.json").read_text())
    planted = mapping(results.get("planted"))
    found, seconds = planted.get("found") is True, -1.0
    if found:
        test, outcome = (json.loads((run / name).read_text()) for name in ("test.json", "outcome.json"))
        seconds = seconds_to_find(load_subject(subject).bugs[prey.bug].found_by, test, outcome)
    where = str(run.relative_to(folder.resolve()))
    return Caught(**asdict(prey), found=found, seconds=seconds, words=str(planted.get("reason") or ""), folder=where)


def seconds_to_find(checker: str, test: Mapping[str, Any], outcome: Mapping[str, Any]) -> float:
    """From the beginning of the main phase until a run with a bug has shown it to this checker.

    test, outcome: test.json and outcome.json of the run.
    """
    began_ns = number(test.get("main_began_ns"), 0)
    online = mapping(outcome.get("online"))
    found_ns = [f["time_ns"] for f in map(mapping, sequence(online.get("findings"))) if f.get("checker") == checker]
    ends = [number(phase.get("end_ns"), -1) for phase in map(mapping, sequence(outcome.get("phases")))]
    return round((min(found_ns) if found_ns else max(ends, default=began_ns)) / 1e9 - began_ns / 1e9, 1)


def _write(folder: Path, caught: Sequence[Caught]) -> None:
    """Whole or not at all: a hunt may be killed at any moment."""
    for name, text in ((HUNT, json.dumps([asdict(c) for c in caught], indent=1) + "\n"), (TABLE, table(caught) + "\n")):
        part = folder / f".{name}.part"
        part.write_text(text)
        part.replace(folder / name)
