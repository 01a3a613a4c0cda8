"""Record the small real runs that the tests judge again: `python tests/data/record.py [NAME ...]` (about 40 s each).

A run is kept as its nodes and the harness left it, before anything was sealed or tabulated, so that the tests read real
log segments and traces with the readers of today: one `NAME.tar.xz` of about 50 kB.  A planted bug does not show itself
in every short run; seeds are tried in turn until the checker it was planted for has found it.
"""

from __future__ import annotations

import io
import lzma
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SMALL = ("--nodes", "3", "--time-limit", "22", "--rate", "60", "--keys", "4", "--concurrency", "8")
TWO_CARDS = ("--nodes", "5", "--time-limit", "36")
"""The second card splits the others in two, and each half must have a voter to elect."""
OF_KAFKA = ("--workload", "kafka-consumers", "--time-limit", "30", "--rate", "20", "--concurrency", "10")

SEEDS = range(1, 13)


@dataclass(frozen=True, slots=True)
class Recorded:
    """bug: planted, None for a clean run; it is found by the checker that the subject names for it.

    options: beside those of SMALL, or instead of them.
    """

    subject: str
    nemesis: str
    bug: str | None = None
    options: tuple[str, ...] = ()


RUNS = {
    "kraft-partition": Recorded("kraft", "partition"),
    "kraft-kill": Recorded("kraft", "kill"),
    "kraft-stale-read": Recorded("kraft", "partition", "stale-read"),
    "kraft-minority-commit": Recorded("kraft", "partition", "minority-commit"),
    "kraft-divergence-by-offset": Recorded("kraft", "partition", "divergence-by-offset"),
    "kraft-lone-vote": Recorded("kraft", "partition", "lone-vote", TWO_CARDS),
    "etcd-partition": Recorded("etcd", "partition"),
    "kafka-commit-before-processing": Recorded("kafka", "partition", "commit-before-processing", OF_KAFKA),
}


def main(names: list[str]) -> int:
    """Record the runs named, or all; 1 if one could not be had as wanted, 3 if a name is unknown."""
    if unknown := sorted(set(names) - set(RUNS)):
        print(f"no recorded run is called {', '.join(unknown)}; there are {', '.join(RUNS)}", file=sys.stderr)
        return 3
    missed = [name for name in names or RUNS if not record(name)]
    for name in missed:
        print(f"{name}: not found with any seed of {SEEDS.start}..{SEEDS.stop - 1}", file=sys.stderr)
    return 1 if missed else 0


def record(name: str) -> bool:
    """Run until it ends as it should, and keep that run; False if no seed does."""
    for seed in SEEDS:
        with tempfile.TemporaryDirectory(prefix="krucible-record-") as results:
            run = _run(RUNS[name], seed, Path(results))
            if run is None:
                continue
            path = HERE / f"{name}.tar.xz"
            path.write_bytes(lzma.compress(_tar(run), preset=9 | lzma.PRESET_EXTREME))
            print(f"{path.name}: seed {seed}, {path.stat().st_size} bytes", flush=True)
            return True
    return False


def _run(wanted: Recorded, seed: int, results: Path) -> Path | None:
    """The folder of a run that ended as wanted, else None."""
    from checkers.base.results import NO_RESULTS, RunVerdict, read_results
    from checkers.base.verdict import Validity
    from harness.judge.judge_run import decide
    from harness.registry import load_subject

    words = ["run", "--subject", wanted.subject, "--nemesis", wanted.nemesis, "--seed", str(seed)]
    words += [*SMALL, *wanted.options, "--results", str(results)] + (["--bug", wanted.bug] if wanted.bug else [])
    subprocess.run([sys.executable, "-m", "harness", *words], check=False)
    run = (results / "latest").resolve()
    results = read_results(run) or NO_RESULTS
    if wanted.bug is None:
        return run if results.verdict is RunVerdict.VALID else None
    bug = load_subject(wanted.subject).bugs[wanted.bug]
    whole = results.verdict_of("evidence") is Validity.VALID  # set-up succeeded, and the run ended
    return run if whole and decide(bug, results).found else None


def _kept(run: Path) -> Iterator[Path]:
    """Every primary file and the manifest that binds them: the run must be whole when it is judged again."""
    from checkers.sealing.manifest import MANIFEST, primary_files

    yield from primary_files(run)
    yield run / MANIFEST


def _tar(run: Path) -> bytes:
    """The kept files, without owner or time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in _kept(run):
            data = path.read_bytes()
            entry = tarfile.TarInfo(str(path.relative_to(run)))
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
