"""Judge a run folder: seal its history, make its tables, and judge it on Spark.

Judging reads only the run folder, so `run` and `analyze` use the same code, also for a run whose harness was killed.

*Planted bugs.*  Judging decides whether the run found its planted bug, and results.json stores the result.

A planted bug is found if the checker that the subject names for it is invalid, with a witness of one of the bug's
kinds.  Another violation makes the verdict invalid, but does not count as the bug.  A planted bug exists to prove that
the harness finds it.  So if a run misses its bug, a valid verdict becomes unknown.

*Demands.*  The demands on a run follow from its spec, its subject and its workload, never from files of the run.

*Copies.*  The journal lists the copies of data directories.  A copy that is missing, or was changed after the run,
proves nothing about the node.  So it is never read as a log that lost entries; checkers get it as an unreadable copy,
with the reason.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq

from checkers import judging
from checkers.base.checker import Checker, Need, in_words
from checkers.base.columns import COPIES
from checkers.base.results import PlantedBugResult, Results, RunVerdict, SignerWords, write_results
from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import HARNESS_FAILED, Validity, Verdict
from checkers.catalog import named_but_lacking, select, wrong_names
from checkers.record.files import BrokenFile, demand_plain
from checkers.record.header_and_outcome import OnlineViolation, RunOutcome, started_on
from checkers.record.run_record import JOURNAL, TEST, RunRecord
from checkers.sealing.manifest import MANIFEST, SignedBy, Signer, broken_files, signer
from checkers.sealing.seal import seal
from checkers.spark.session import SparkJudge
from harness.real_systems import story_of
from harness.registry import SUBJECTS, WORKLOADS, load_subject, load_workload
from harness.spec import CLIENT_NODES, Spec, WrongSpec, unknown_name
from nemesis.kinds import dealt_by
from system_under_test.own.files_handed_over import kept
from system_under_test.subject import Bug, Collected, Declares, ProcessState
from workloads.workload import Workload

_EXECUTABLE = (".py", ".so")
"""Suffixes of files in a run folder that Python may execute, apart from compiled files, which `source_only`
excludes."""
_CODE_SHOWN = 8
_CLOCK_NS_MAX = 1 << 62
"""Maximum monotonic time in nanoseconds, more than a century.  Differences of such times still fit into 64 bits."""


def checkers_for(spec: Spec, demands: Demands) -> list[Checker]:
    """Return the checkers that apply to a run with these demands, in the order of the catalog.

    Raises WrongSpec if the workload names no checker of its clients' answers, or an unknown checker.
    """
    workload = load_workload(spec)
    if wrong := wrong_names(workload.checkers):
        raise WrongSpec(f"workload {workload.name}: {wrong}")
    return select(_offered(spec, demands), workload.checkers)


def _offered(spec: Spec, demands: Demands) -> set[Need]:
    """Return the kinds of evidence that a run with these demands has for checkers."""
    has: dict[Need, bool] = {"logs": demands.logs, "traces": demands.traces, "nodes": demands.nodes}
    has["unique-values"] = load_workload(spec).unique_values
    declares = load_subject(spec).declares
    has["kraft-steps"] = declares.kraft_steps
    has["client-records"] = declares.kraft_steps or not declares.registers_brokers
    has["kraft-records"] = declares.kraft_steps or declares.registers_brokers
    has["topic-logs"], has["two-implementations"] = declares.topic_logs, declares.two_implementations
    return {"history", *(need for need, there in has.items() if there)}


def _note_left_out(verdicts: judging.Verdicts, spec: Spec, demands: Demands) -> None:
    """Add the verdict "not applicable" for each checker that the workload names and that cannot judge this run."""
    left_out = named_but_lacking(_offered(spec, demands), load_workload(spec).checkers)
    for checker, why in left_out.items():
        verdicts.checkers[checker.name] = checker
        verdicts[checker.name] = Verdict(Validity.NOT_APPLICABLE, reason=why)


def spec_of(root: Path, trust: bool = False) -> Spec:
    """Return the spec of a stored run.  A user's system or workload is loaded from the copy in the run folder.

    trust: True to load it although neither this machine nor a trusted key has signed the copy.  Loading executes code
        from the run folder, so the user must have read the code.
    Raises WrongSpec and BrokenFile.  A run without the copy is refused, because the user's present file may differ.  A
    run whose copy differs from the manifest is refused too, because the changed code could hide other changes.
    """
    header = RunRecord(root).header
    if header is None:
        raise BrokenFile(f"{TEST} is missing, so it is not known what was tested")
    spec = Spec.from_json(header.spec)
    if spec.subject not in SUBJECTS:
        spec = replace(spec, subject=_kept_subject(root, spec.subject))
        _demand_safe(root, "subject", trust)
    if spec.workload.endswith(".py"):
        spec = replace(spec, workload=_kept_workload(root, spec.workload))
        _demand_safe(root, "workload", trust)
    return spec


def _kept_subject(root: Path, name: str) -> str:
    try:
        own = kept(root)
    except ValueError as problem:
        raise BrokenFile(str(problem)) from problem
    if own is None:
        raise BrokenFile(f"the run holds no copy of its system {name} (subject/main.json), so it cannot be judged")
    return own


def _kept_workload(root: Path, name: str) -> str:
    path = root / "workload" / Path(name).name
    if not path.is_file():
        raise BrokenFile(f"the run holds no copy of its workload {name} (workload/{path.name}), so it cannot be judged")
    return str(path)


def _demand_safe(root: Path, folder: str, trust: bool) -> None:
    """Raise BrokenFile if the code to be executed, or a file that names the code, differs from the manifest.  Raise
    WrongSpec if no trusted key has signed the run, unless `trust` is set.
    """
    links = [path for path in (root / folder, *(root / folder).rglob("*")) if path.is_symlink()]
    broken = {str(path.relative_to(root)): "is a symbolic link, which a run folder must not contain" for path in links}
    for name, what in (broken | broken_files(root, TEST) | broken_files(root, f"{folder}/")).items():
        raise BrokenFile(f"{name} {what}, so nothing in {folder}/ is executed, and the run cannot be judged")
    files = sorted(path for path in (root / folder).rglob("*") if path.suffix in _EXECUTABLE)
    names = [str(path.relative_to(root)) for path in files]
    made_by = signer(root)
    if trust or made_by.trusted:
        return
    ended = (root / MANIFEST).exists()
    by = f"the run is {made_by.words}" if ended else "nobody has signed the run yet: its test goes on, or was cut short"
    raise WrongSpec(
        f"this run would execute code from its own folder: {', '.join(names[:_CODE_SHOWN])}"
        f"{f' and {len(names) - _CODE_SHOWN} more' if len(names) > _CODE_SHOWN else ''}; this is refused, because "
        f"{by}: read this code, then allow it with --trust"
    )


def demands_on(spec: Spec) -> Demands:
    """Return the demands on a stored run.

    Raises WrongSpec if the user's workload raises an exception, because the copy may have been changed.
    """
    try:
        return demands_of(spec)
    except WrongSpec:
        raise
    except Exception as problem:
        if spec.workload in WORKLOADS:
            raise
        raise WrongSpec(f"{spec.workload} does not show what the run had to do: {in_words(problem)}") from problem


def outcome_of(record: RunRecord) -> RunOutcome:
    """Return the outcome of a stored run.  If it cannot be read, return an empty outcome, because the checkers have
    already reported the broken file.
    """
    try:
        return record.outcome or RunOutcome()
    except BrokenFile:
        return RunOutcome()


def judge(
    root: Path,
    spark: SparkJudge | None,
    progress: Callable[[str], None],
    report: bool = True,
    trust: bool = False,
) -> Results:
    """Judge the run in `root`, write results.json, report.html and junit.xml, and return the results.

    spark: judge on Spark; None judges in this process
    report: False to write only results.json
    trust: see `spec_of`
    Raises MalformedHistory if the history violates its grammar, BrokenFile if test.json or the journal's list of copies
    is unusable, WrongSpec if the spec is impossible.
    """
    demand_plain(root)
    run = StoredRun(root)
    spec, header = spec_of(root, trust), run.header
    if header is None or not 0 <= header.started_monotonic_ns < _CLOCK_NS_MAX:
        raise BrokenFile("test.json has no valid start time of the test (started_monotonic_ns)")
    subject, demands = load_subject(spec), demands_on(spec)
    if spec.bug is not None and spec.bug not in subject.bugs:
        raise WrongSpec(unknown_name(f"bug of {subject.name}", spec.bug, subject.bugs))
    began = time.monotonic()
    progress("sealing the history")
    seal(root)
    if demands.logs or demands.traces:
        progress("reading logs and traces")
        shutil.rmtree(root / "tables", ignore_errors=True)  # results of an earlier judging prove nothing now
        tabulate(run.record, lambda copies: subject.tables(root, copies, started_on(header)))
    verdicts = judging.judge_run(StoredRun(root, demands, run.record), checkers_for(spec, demands), spark, progress)
    _note_left_out(verdicts, spec, demands)
    judging.set_aside_doubted(verdicts)
    if demands.final_needs_recovery:
        judging.set_aside_unrecovered(verdicts, outcome_of(run.record))
    bug = subject.bugs.get(spec.bug) if spec.bug else None
    results = _corrected(replace(judging.results_of(verdicts), signer=_signer(root)), outcome_of(run.record), bug)
    results = replace(results, finding=story_of(spec, results))
    judged = time.monotonic()
    if report:
        from harness.report.element_fates import words_of_lost
        from harness.story.headline import verdict_in_words

        results = replace(results, lost_elements=words_of_lost(root, results))
        summary, seconds = verdict_in_words(results, header), round(judged - began, 3)
        results = replace(results, summary=summary, judging_s=seconds)
    write_results(root, results)  # written once, so that a crash never leaves a verdict without its corrections
    if report:
        from harness.report.render import render

        progress("writing the report")
        render(root)
        progress(f"judged in {judged - began:.1f} s, reported in {time.monotonic() - judged:.1f} s")
    return results


def _signer(root: Path) -> SignerWords:
    """Return the signer of the run, as stored in results.json.  The checker `evidence` reports an unreadable
    manifest."""
    try:
        made_by = signer(root)
    except BrokenFile:
        made_by = Signer(SignedBy.CHANGED)
    return SignerWords(str(made_by.by), made_by.key, made_by.words)


def _corrected(results: Results, outcome: RunOutcome, bug: Bug | None) -> Results:
    """Correct the verdict for a run that ended early, a planted bug, a failed set-up, and online findings."""
    results = demand(bug, doubt_a_stop(results, outcome))
    results = _note_set_up_failure(results, outcome.set_up_failure)
    found = outcome.online.findings if outcome.online is not None else ()
    return _shout(results, contradictions(found, results))


def doubt_a_stop(results: Results, outcome: RunOutcome) -> Results:
    """Change a valid verdict to unknown if the run ended early because of a violation that no checker finds."""
    if outcome.stopped is None or results.verdict is not RunVerdict.VALID:
        return results
    reason = "the run ended early because of a violation that the recorded run does not show"
    return replace(results.unknown(), summary=f"the verdict is unknown: {reason}", reason=reason)


def _note_set_up_failure(results: Results, why: str) -> Results:
    """If the subject never became ready and violated nothing, report that no test took place."""
    if not why or results.verdict is RunVerdict.INVALID:
        return results
    reason = f"the system never became ready: {why}"
    return replace(results.unknown(), reason=reason, summary=f"no test took place: {reason}", not_tested=True)


def _shout(results: Results, contradicted: Sequence[str]) -> Results:
    """Report online findings that the recorded run does not confirm.  Each of them is a failure of the harness."""
    if not contradicted:
        return results
    words = f"The harness contradicts itself, and one of its judges is wrong: {' '.join(contradicted)}"
    doubted = results.unknown() if results.verdict is RunVerdict.VALID else results
    return replace(doubted, exit_code=HARNESS_FAILED, contradiction=words, summary=words)


def contradictions(found: Sequence[OnlineViolation], results: Results) -> list[str]:
    """Return one sentence for each online finding that the results of the sealed run do not confirm."""
    return [
        f"Online checks found that {violation.checker} was violated ({violation.summary.rstrip('.')}), but in the "
        f"recorded run that checker is {results.verdict_of(violation.checker) or 'missing'}."
        for violation in found
        if results.verdict_of(violation.checker) is not Validity.INVALID
    ]


def falsify(root: Path) -> Iterator[judging.Mutant]:
    """Run the mutation check of a judged run (`checkers.judging`): yield one mutant per row on which the verdict must
    depend.

    Raises FileNotFoundError if the run was never judged.
    """
    spec = spec_of(root)
    demands = demands_of(spec)
    with tempfile.TemporaryDirectory(prefix="krucible-mutants-") as scratch:
        yield from judging.mutants(
            StoredRun(root, demands), checkers_for(spec, demands), spec.rng("mutants"), Path(scratch)
        )


def decide(bug: Bug, results: Results) -> PlantedBugResult:
    """Return whether the run found its planted bug, with the reason."""
    checker = results.checkers.get(bug.found_by)
    if checker is None:
        return PlantedBugResult(bug.name, False, f"{bug.found_by} did not judge this run")
    if checker.verdict is not Validity.INVALID:
        why = f": {checker.reason}" if checker.reason else ""
        return PlantedBugResult(bug.name, False, f"{bug.found_by} is {checker.verdict}{why}")
    kinds = sorted({witness.kind for witness in checker.witness})
    if shown := [kind for kind in kinds if kind in bug.witness_kinds or not bug.witness_kinds]:
        return PlantedBugResult(bug.name, True, f"{bug.found_by} found: {', '.join(shown)}")
    reason = f"{bug.found_by} found only {', '.join(kinds)}, where {' or '.join(bug.witness_kinds)} would count"
    return PlantedBugResult(bug.name, False, reason)


def demand(bug: Bug | None, results: Results) -> Results:
    """Add `planted` to the results of a run with a planted bug.  If the bug was missed, a valid verdict becomes
    unknown."""
    if bug is None:
        return results
    results = replace(results, planted=(planted := decide(bug, results)))
    return results.unknown() if not planted.found and results.verdict is RunVerdict.VALID else results


def demands_of(spec: Spec) -> Demands:
    """Return the demands on a run.  Raises WrongSpec if the spec names an unknown subject, workload or nemesis."""
    subject, workload = load_subject(spec), load_workload(spec)
    declares = subject.declares
    try:
        nemesis = dealt_by(spec.nemesis) if spec.schedule is None else "schedule"
    except ValueError as problem:
        raise WrongSpec(str(problem)) from problem
    return Demands(
        servers=spec.servers if declares.nodes else (),
        voters=tuple(declares.voters(spec.servers)) if declares.nodes and declares.voters_max else (),
        client_nodes=CLIENT_NODES,
        keys=tuple(workload.keys()),
        set_up=tuple(request.f for request in workload.set_up()),
        final_reads=tuple((request.f, request.key) for request in workload.final()),
        functions=frozenset(workload.functions),
        reads=workload.reads,
        writes=workload.writes,
        nodes=declares.nodes,
        logs=declares.logs,
        traces=declares.traces,
        elections=declares.elections,
        registers_brokers=declares.registers_brokers,
        faults=declares.faults,
        nemesis=nemesis if declares.faults else "",
        rate_hz=spec.rate_hz * workload.invoked_share,
        invoked_share=workload.invoked_share,
        ok_share=workload.ok_share,
        op_timeout_s=spec.op_timeout_s,
        time_limit_s=spec.time_limit_s,
        recovery_limit_s=spec.recovery_limit_s,
        holds=spec.lengthened(declares.failover_s),
        waived=spec.waived,
        unavailable_s=declares.unavailable_s,
        concurrency=spec.concurrency,
        ends_early=spec.stop_on_violation,
        each_server_serves=declares.nodes and (declares.each_server_serves or workload.each_server),
        routes_by_itself=declares.routes_by_itself,
        each_server_read_at_end=reads_each_server_at_end(declares, workload),
        final_needs_recovery=workload.final_needs_recovery,
    )


def reads_each_server_at_end(declares: Declares, workload: Workload) -> bool:
    """Return True if every server is read after recovery, each by a client of its own."""
    serves = declares.each_server_serves or workload.each_server
    return declares.nodes and serves and workload.final_repeats and bool(workload.final())


_COPIES_MAX = 1 << 15
"""Maximum number of copies.  They are numbered from 0, and tables store the numbers in 16 bits."""


def copies_of(record: RunRecord) -> list[Collected]:
    """Return the copies of a run that the journal lists.  Raises BrokenFile if the list is invalid."""
    if wrong := [row.copy for row in record.copies if not 0 <= row.copy < _COPIES_MAX]:
        raise BrokenFile(f"{JOURNAL}: {wrong[0]} is not a valid number of a copy")
    times = Counter((row.copy, row.node) for row in record.copies)
    if twice := [name for name, count in times.items() if count > 1]:
        raise BrokenFile(f"{JOURNAL} lists copy {twice[0][0]} of {twice[0][1]} twice")
    return [
        Collected(
            copy=row.copy,
            when=row.when,
            node=row.node,
            state=next((state for state in get_args(ProcessState) if state == row.state), "dead"),
            folder=_below(record.root, row.folder),
            trace_size_bytes=row.trace_size_bytes,
            taken_ns=row.taken_ns,
        )
        for row in record.copies
    ]


def _below(run_folder: Path, name: str) -> Path:
    """Return the path of a folder in the run folder.  Raises BrokenFile for a name that leads outside of it."""
    if ".." in Path(name).parts or Path(name).is_absolute():
        raise BrokenFile(f"{JOURNAL} names a folder of copies outside of the run: {name}")
    return run_folder / name


def tabulate(record: RunRecord, write_tables: Callable[[Sequence[Collected]], None]) -> None:
    """Make the tables of a run from the intact copies, and add the other copies as unreadable, with the reason.

    write_tables: makes `tables/` from the copies that it gets (`Subject.tables`)
    Raises BrokenFile.
    """
    copies = copies_of(record)
    lost = _not_whole(record.root, copies)
    write_tables([copy for number, copy in enumerate(copies) if number not in lost])
    if not lost:
        return
    run = StoredRun(record.root, record=record)
    rows = [*run.copies, *run.damaged_copies, *(_unreadable(copies[number], why) for number, why in lost.items())]
    run.copies_table.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=COPIES), run.copies_table, compression="zstd")


def _not_whole(root: Path, copies: Sequence[Collected]) -> dict[int, str]:
    """Return index in `copies` -> reason, for each copy that is no evidence."""
    broken = broken_files(root, "nodes/")
    lost: dict[int, str] = {}
    for number, copy in enumerate(copies):
        folder = str(copy.folder.relative_to(root))
        if not copy.folder.is_dir() or not any(copy.folder.iterdir()):
            lost[number] = f"{folder} is missing"
        elif found := [f"{name} {what}" for name, what in broken.items() if name.startswith(f"{folder}/")]:
            lost[number] = found[0]
    return lost


def _unreadable(copy: Collected, why: str) -> Mapping[str, object]:
    """Return a row of COPIES for an unreadable copy."""
    row = {"copy": copy.copy, "node": copy.node, "when": copy.when, "state": copy.state, "error": why}
    return row | {"log_end": 0, "torn_bytes": 0, "quorum_epoch": -1, "voted_for": None, "trace_seq": -1}
