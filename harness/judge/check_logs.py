"""Judge files of nodes without a test: a run folder, or collected data directories.

A run folder has traces and copies of each node's data directory, so all checkers of logs and traces apply.  Data
directories are enough to show whether two logs disagree below a common epoch.  They do not show which entries were
acknowledged or committed.

The verdict tells how reliable the files are as evidence.  If a file differs from the run's manifest, the verdict is
unknown.  If there is no manifest, the verdict mentions it.

Nothing is written into the folder: tables are written to a temporary folder with links to the run's own files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import MAX_WITNESSES, Validity, Verdict, combine
from checkers.catalog import select
from checkers.judging import Progress, judge_run
from checkers.record.files import BrokenFile, demand_plain
from checkers.record.header_and_outcome import started_on
from checkers.record.run_record import JOURNAL, TEST, RunRecord
from checkers.sealing.manifest import MANIFEST, bound_files, broken_bonds
from harness.judge.judge_run import copies_of, demands_of, spec_of
from harness.report.judged_file import JudgedFile
from harness.spec import WrongSpec
from system_under_test.kraft.collected.files import LOG_FOLDER, write_tables
from system_under_test.subject import Collected

NOT_BOUND = "no manifest binds these files, so they were judged as they are"

SHOWN = 8
"""Maximum number of files with differences from the manifest that are named.  Further files are counted."""

_DEPTH_MAX = 6
_LINKED = ("trace", TEST, JOURNAL)


def judge_logs(folder: Path, say: Progress = lambda _: None) -> JudgedFile:
    """Return one verdict for a folder, with the verdict of each checker in `details`.

    say: called with the progress"""
    folder = folder.resolve()
    try:
        return JudgedFile(str(folder), _verdict(folder, (folder / JOURNAL).exists(), say))
    except (BrokenFile, OSError) as problem:
        return JudgedFile(str(folder), Verdict(Validity.UNKNOWN, reason=str(problem)), str(problem))


def _verdict(folder: Path, is_run: bool, say: Progress) -> Verdict:
    """Return the verdict of a folder.  Raises BrokenFile and OSError."""
    if is_run:
        demand_plain(folder)
    copies = copies_of(RunRecord(folder)) if is_run else data_directories(folder)
    began_ns = started_on(RunRecord(folder).header)
    if not copies and (name := _without_logs(folder)):
        raise BrokenFile(f"is a run of {name}, which has no logs of Kafka's format: analyze judges what it has")
    if not copies:
        raise BrokenFile(f"holds neither a run ({JOURNAL}) nor a data directory (a folder with {LOG_FOLDER} in it)")
    with tempfile.TemporaryDirectory(prefix="krucible-logs-") as name:
        root = Path(name)
        for linked in _LINKED if is_run else ():
            if (folder / linked).exists():
                (root / linked).symlink_to(folder / linked)
        write_tables(root, copies, began_ns, say)
        checkers = select({"logs", "traces", "kraft-records", "kraft-steps"} if is_run else {"logs"})
        verdicts = judge_run(
            StoredRun(root, _demands(folder) if is_run else Demands(logs=True)), checkers, progress=say
        )
    return _together(verdicts, *_bound(folder))


def _without_logs(folder: Path) -> str:
    """Return the system of a run if the system has no logs in Kafka's format; else ""."""
    record = RunRecord(folder)
    lacks = record.header is not None and record.outcome is not None and record.outcome.declares.get("logs") is False
    return str(record.header.spec.get("subject")) if record.header is not None and lacks else ""


def data_directories(folder: Path) -> list[Collected]:
    """Return every data directory in a folder, as the final copy of a node that is named after its location.

    Raises OSError, also for a device, which the command line accepts as a folder.
    """
    if not folder.is_dir():
        raise NotADirectoryError("is no folder")
    found: list[Path] = []
    level: Sequence[Path] = [folder]
    for _ in range(_DEPTH_MAX):
        deeper: list[Path] = []
        for place in level:
            if (place / LOG_FOLDER).is_dir():
                found.append(place)
            else:
                deeper += sorted(p for p in place.iterdir() if p.is_dir() and not p.is_symlink())
        level = deeper
    if found == [folder]:
        return [Collected(0, "final", folder.name, "dead", folder)]
    return [Collected(0, "final", "-".join(p.relative_to(folder).parts), "dead", p) for p in found]


def _demands(folder: Path) -> Demands:
    """Return the demands on the run in this folder.  If they cannot be read, demand logs and traces."""
    try:
        return demands_of(spec_of(folder))
    except (BrokenFile, WrongSpec):
        return Demands(logs=True, traces=True)


def _bound(folder: Path) -> tuple[list[str], str]:
    """Return (the differences from the run's manifest, a note if there is no manifest)."""
    try:
        if bound_files(folder) is None:
            return [], NOT_BOUND
        return broken_bonds(folder), ""
    except BrokenFile as problem:
        return [str(problem)], ""


def _together(verdicts: dict[str, Verdict], broken: Sequence[str], note: str) -> Verdict:
    """Combine the verdicts of the checkers into one.

    broken: differences from the manifest, which make a valid verdict unknown
    note: sentence that is added to every verdict
    """
    overall = combine(v.validity for v in verdicts.values())
    if broken and overall is Validity.VALID:
        overall = Validity.UNKNOWN
    reasons = [f"{name}: {v.reason}" for name, v in verdicts.items() if v.reason]
    reasons += [f"{MANIFEST}: {clause}" for clause in broken[:SHOWN]]
    reasons += [f"and {len(broken) - SHOWN} files more"] if len(broken) > SHOWN else []
    witnesses = [w for v in verdicts.values() for w in v.witnesses][:MAX_WITNESSES]
    looked_at = {name: str(v.validity) for name, v in verdicts.items()}
    details = {name: {"verdict": str(v.validity), "looked_at": dict(v.looked_at)} for name, v in verdicts.items()}
    if overall is Validity.NOT_APPLICABLE:
        overall = Validity.UNKNOWN
    if not reasons and overall is Validity.UNKNOWN:
        reasons = ["nothing could be judged"]
    reason = "; ".join([*reasons, *([note] if note else [])])
    return Verdict(overall, looked_at, reason, tuple(witnesses), details)
