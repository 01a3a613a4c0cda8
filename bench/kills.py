"""Measure what a killed harness leaves behind: whole runs, killed with SIGKILL at random moments, among things of
others.

    python -m bench.kills --backend docker --times 20

Each trial starts a short run in a process group of its own and waits for the first line that it prints: on a loaded
machine the imports alone take seconds.  It kills the harness alone at a random moment after that line.  It then looks
for what carries the mark of the trial until nothing is left:

    processes     by an environment variable that every process of a run inherits
    the engine    containers, networks and volumes by label, rules by the run's id
    hosts         (ssh) files, rules, mounts, the lock and processes
    mounts        below the trial's own temporary folder
    files         in that folder, where all temporary files of a run lie

What remains after LIMIT_S is a leak, unless `clean-up` removes it: a run that dies within its first second may have no
helper yet that cleans up after it.  The decoys (`bench.decoys`) are looked at after every trial.

Things of others on this machine, which no clean-up may touch: rules, a network, a loop device, FUSE, a process.

Their names resemble those of runs where possible: a clean-up that goes by name alone would remove them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import click

from harness.agent.disk.verbs import Mounted

LIMIT_S = 45.0
MARK = "KRUCIBLE_KILL_TRIAL"
_LOOK_S = 0.1
_TESTS = Path(__file__).resolve().parents[1] / "tests"
_OPTIONS: dict[str, list[str]] = {
    "docker": ["--nemesis", "partition,power"],
    "namespaces": ["--nemesis", "partition,power"],
    "ssh": ["--nemesis", "partition,power"],
    "in-process": ["--subject", "canary", "--nemesis", "none", "--workload", "register"],
}


@dataclass(frozen=True, slots=True)
class KilledRun:
    """One trial.  at_s: after its first line.  phase: the line it printed last.  gone_s: until nothing was left, -1 if
    something stayed.  swept: `clean-up` was run then.  left: what stayed even so.  harmed: decoys that are gone."""

    backend: str
    seed: int
    at_s: float
    phase: str
    gone_s: float
    swept: bool
    left: Sequence[str]
    harmed: Sequence[str] = ()


@click.command()
@click.option("--backend", type=click.Choice(sorted(_OPTIONS)), required=True)
@click.option("--times", default=20, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option(
    "--within", "within_s", default=30.0, show_default=True, help="Kill at a random moment of so many seconds."
)
@click.option("--time-limit", default=15.0, show_default=True, help="Seconds of the main phase of each run.")
def main(backend: str, times: int, seed: int, within_s: float, time_limit: float) -> None:
    trials = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the decoys are removed then, too
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kills-")))
        uses_engine = backend in ("docker", "ssh")
        checks = stack.enter_context(decoys(folder, docker=uses_engine))
        print(f"decoys: {', '.join(checks)}", flush=True)
        options = ["--backend", backend, *_OPTIONS[backend], "--nodes", "3", "--rate", "60"]
        options += ["--time-limit", f"{time_limit:g}"]
        of_hosts = None
        if backend == "ssh":
            hosts = stack.enter_context(_hosts(folder))
            options += ["--inventory", hosts.inventory(("n1", "n2", "n3"), ("c1", "c2"))]
            of_hosts = lambda: [f"{h}: {line}" for h in hosts.address_of for line in hosts.left_on(h)]  # noqa: E731
        for number in range(seed, seed + times):
            at_s = Random(number).uniform(0.0, within_s)
            killed = _trial(backend, number, at_s, [*options, "--seed", str(number)], folder, of_hosts)
            killed = replace(killed, harmed=missing(checks))
            trials.append(killed)
            print(json.dumps(asdict(killed)), flush=True)
    _print_summary(trials)
    sys.exit(any(killed.left or killed.harmed for killed in trials))


def _hosts(folder: Path) -> Any:
    """Five hosts of the ssh backend, as its tests make them."""
    sys.path[:0] = [str(_TESTS / "support"), str(_TESTS / "harness" / "backends" / "ssh")]
    return import_module("ssh_hosts").ssh_hosts(folder, ("n1", "n2", "n3", "c1", "c2"), disk=True)


def _trial(
    backend: str,
    seed: int,
    at_s: float,
    options: Sequence[str],
    folder: Path,
    of_hosts: Callable[[], list[str]] | None,
) -> KilledRun:
    mark, temporary, results = f"{os.getpid()}-{seed}", folder / f"tmp-{seed}", folder / f"results-{seed}"
    temporary.mkdir()
    output = folder / f"output-{seed}"
    with output.open("wb") as out:
        harness = subprocess.Popen(
            [sys.executable, "-m", "harness", "run", *options, "--results", str(results)],
            stdout=out,
            stderr=out,
            start_new_session=True,
            env={**os.environ, MARK: mark, "TMPDIR": str(temporary)},
        )
    try:
        while not output.stat().st_size and harness.poll() is None:
            time.sleep(_LOOK_S)
        harness.wait(at_s)
    except subprocess.TimeoutExpired:
        harness.send_signal(signal.SIGKILL)
    harness.wait()
    killed_s = time.monotonic()
    runs = [run.name for run in results.glob("*") if not run.is_symlink()] if results.exists() else []
    while left := _left(mark, temporary, runs, backend) + (of_hosts() if of_hosts else []):
        if time.monotonic() - killed_s > LIMIT_S:
            break
        time.sleep(_LOOK_S)
    swept = bool(left) and _clean_up(temporary)
    left = _left(mark, temporary, runs, backend) + (of_hosts() if of_hosts else []) if swept else left
    gone_s = -1.0 if left or swept else round(time.monotonic() - killed_s, 2)
    lines = output.read_text(errors="replace").strip().splitlines()
    phase = lines[-1].strip()[:80] if lines else "it had printed nothing"
    for entry in left:
        if entry.startswith("process "):
            os.kill(int(entry.split()[1]), signal.SIGKILL)
    return KilledRun(backend, seed, round(at_s, 1), phase, gone_s, swept, left)


def _clean_up(temporary: Path) -> bool:
    """Run the command that removes what dead runs left here."""
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-m", "harness", "clean-up"], env=env, capture_output=True, check=False)
    return done.returncode == 0


def _left(mark: str, temporary: Path, runs: Sequence[str], backend: str) -> list[str]:
    found = [f"process {pid} {words}" for pid, words in _marked(mark)]
    found += [f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if str(temporary) in line]
    found += [f"file {path.relative_to(temporary)}" for path in sorted(temporary.iterdir())]
    if backend == "docker":
        found += [thing for run in runs for thing in _in_the_engine(run)]
    return found


def _marked(mark: str) -> list[tuple[int, str]]:
    """Processes of every namespace that inherited the mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            if wanted in (place / "environ").read_bytes().split(b"\0"):
                words = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((int(place.name), words[:100]))
        except OSError:  # it ended meanwhile
            continue
    return found


def _in_the_engine(run: str) -> list[str]:
    label = f"label=krucible.run={run}"
    found = []
    for kind, every in (("container", ["--all"]), ("network", []), ("volume", [])):
        listed = _lines(["docker", kind, "ls", "--quiet", *every, "--filter", label])
        found += [f"{kind} {name}" for name in listed]
    table = "krucible_" + "".join(letter if letter.isalnum() else "_" for letter in run)
    found += [line for line in _lines(["nft", "list", "tables"]) if table in line]
    return found


def _lines(argv: list[str]) -> list[str]:
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def _print_summary(trials: Sequence[KilledRun]) -> None:
    gone = sorted(killed.gone_s for killed in trials if killed.gone_s >= 0)
    swept = sum(killed.swept and not killed.left for killed in trials)
    leaks = sum(bool(killed.left) for killed in trials)
    harmed = sum(bool(killed.harmed) for killed in trials)
    words = f"gone after {gone[len(gone) // 2]:.1f} s (median), {gone[-1]:.1f} s (worst)" if gone else ""
    print(f"{len(trials)} kills: {leaks} leaks, {harmed} with a decoy harmed; {words}")
    print(f"{swept} left something until `clean-up` was run")


_LOOP_BYTES = 1 << 20


@contextmanager
def decoys(folder: Path, *, docker: bool) -> Iterator[Mapping[str, list[str]]]:
    """Name -> a command that succeeds as long as the thing is there.  Everything is removed at the end.

    docker: also a network, a volume and a container without labels of ours.  What this machine cannot make is left out.
    """
    checks: dict[str, list[str]] = {}
    with ExitStack() as stack:
        _rules(stack, checks)
        _loop_device(stack, checks, folder)
        _fuse(stack, checks, folder)
        process = subprocess.Popen(["sleep", "86399"])
        stack.callback(process.wait)
        stack.callback(process.kill)
        checks["a process"] = ["grep", "-q", "sleep", f"/proc/{process.pid}/cmdline"]
        kept = folder / "krucible-nodes-of-another"
        kept.mkdir()
        checks["a folder without an owner"] = ["test", "-d", str(kept)]
        if docker:
            _of_the_engine(stack, checks)
        yield checks


def missing(checks: Mapping[str, list[str]]) -> list[str]:
    """The decoys that are gone."""
    return [name for name, argv in checks.items() if not _succeeds(argv)]


def _rules(stack: ExitStack, checks: dict[str, list[str]]) -> None:
    for family in ("bridge", "ip"):
        table = [family, f"krucible_of_another_{os.getpid()}"]
        text = f"add table {' '.join(table)}\nadd chain {' '.join(table)} kept"
        if _succeeds(["nft", text]):
            stack.callback(_succeeds, ["nft", "delete", "table", *table])
            checks[f"{family} rules"] = ["nft", "list", "chain", *table, "kept"]


def _loop_device(stack: ExitStack, checks: dict[str, list[str]], folder: Path) -> None:
    image = folder / "loop.img"
    image.write_bytes(bytes(_LOOP_BYTES))
    made = subprocess.run(["losetup", "--find", "--show", str(image)], capture_output=True, text=True, check=False)
    if made.returncode == 0:
        device = made.stdout.strip()
        stack.callback(_succeeds, ["losetup", "--detach", device])
        checks["a loop device"] = ["grep", "-q", image.name, f"/sys/block/{Path(device).name}/loop/backing_file"]


def _fuse(stack: ExitStack, checks: dict[str, list[str]], folder: Path) -> None:
    shown, kept = folder / "shown", folder / "kept"
    for place in (shown, kept):
        place.mkdir()
    disk = Mounted(shown, kept)
    with contextlib.suppress(OSError):  # no FUSE here, so no run can harm a mount of others either
        disk.mount()
        stack.callback(disk.unmount)
        (shown / "file").write_text("of another")
        checks["a FUSE mount"] = ["grep", "-q", "another", str(shown / "file")]


def _of_the_engine(stack: ExitStack, checks: dict[str, list[str]]) -> None:
    name = f"krucible-of-another-{os.getpid()}"
    image = subprocess.run(
        ["docker", "images", "--quiet", "--filter", "label=krucible.image=node"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    made = {
        "a network": ["docker", "network", "create", "--internal", name],
        "a volume": ["docker", "volume", "create", name],
        "a container": ["docker", "run", "--detach", "--name", name, *image[:1], "sleep", "86398"],
    }
    for thing, argv in made.items():
        kind = argv[1] if argv[1] in ("network", "volume") else "container"
        if not _succeeds(argv):
            print(f"{thing} of another could not be made", file=sys.stderr)
            continue
        force = ["--force"] if kind != "network" else []
        stack.callback(_succeeds, ["docker", kind, "rm", *force, name])
        checks[thing] = ["docker", kind, "inspect", name]


def _succeeds(argv: list[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False, timeout=120).returncode == 0


if __name__ == "__main__":
    main()
