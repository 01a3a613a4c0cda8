"""From a kept run to its verdict: seal, tabulate, judge on Spark, report.

Judging needs nothing but the run folder, so `run` and `analyze` share it, and a run whose harness was killed is judged
by the same code.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from checkers.catalog import BY_MODEL, CATALOG
from checkers.checker import Checker, RunFiles
from checkers.json_file import BrokenFile, read_object
from checkers.mutation import Mutant, mutants
from checkers.pipeline import judge_run, write_results
from checkers.seal import seal
from checkers.spark.session import SparkJudge
from checkers.verdict import HARNESS_FAILED, Validity
from harness.collect import copies_of
from harness.online import contradictions
from harness.registry import load_subject, load_workload
from harness.spec import Spec
from system_under_test.subject import Declares

OF_TRACES = ("election-safety", "vote-once", "monotonicity", "state-machine-safety", "snapshot-equals-prefix")
OF_LOGS = (
    "log-matching",
    "committed-never-lost",
    "high-watermark-majority",
    "leader-completeness",
    "history-against-log",
)
OF_NODES = ("nodes-stay-up", "recovery")
OF_ALL = ("statistics", "vacuity")


def checkers_for(spec: Spec, declares: Declares) -> list[Checker]:
    """The checkers that can say something of a subject with these declarations, in the order of the catalog."""
    names = set(load_workload(spec).checkers) | set(OF_ALL)
    for declared, some in ((declares.traces, OF_TRACES), (declares.logs, OF_LOGS), (declares.nodes, OF_NODES)):
        names.update(some if declared else ())
    return [checker for name, checker in (BY_MODEL | CATALOG).items() if name in names]


def spec_of(root: Path) -> Spec:
    """What a stored run was asked to be.  Raises BrokenFile, WrongSpec."""
    spec = read_object(root / "test.json").get("spec")
    if not isinstance(spec, dict):
        raise BrokenFile("test.json does not say what was tested (it has no spec)")
    return Spec.from_json(spec)


def outcome_of(root: Path) -> Mapping[str, Any]:
    """What became of a stored run; nothing where that cannot be read, which its checkers have then said already."""
    try:
        return read_object(root / "outcome.json")
    except BrokenFile:
        return {}


def judge(
    root: Path, spark: SparkJudge | None, progress: Callable[[str], None], report: bool = True
) -> Mapping[str, Any]:
    """Judge the run kept in `root`; the content of results.json, which is written, with report.html and junit.xml.

    Raises MalformedHistory where the history breaks its own grammar, BrokenFile where test.json or the index of copies
    cannot be used, WrongSpec where no such test can have been.
    """
    test = read_object(root / "test.json")
    spec = spec_of(root)
    if not isinstance(started_ns := test.get("started_monotonic_ns", 0), int):
        raise BrokenFile("test.json does not say when the test began (started_monotonic_ns)")
    subject = load_subject(spec.subject)
    began = time.monotonic()
    progress("sealing the history")
    seal(root)
    if subject.declares.logs or subject.declares.traces:
        progress("reading logs and traces")
        subject.tables(root, copies_of(root), started_ns)
    verdicts = judge_run(RunFiles(root), checkers_for(spec, subject.declares), spark, progress)
    results = write_results(root, verdicts)
    if contradicted := contradictions(outcome_of(root).get("online") or {}, results["checkers"]):
        _shout(results, contradicted)
        (root / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    judged = time.monotonic()
    if report:
        from harness.report import render, verdict_in_words

        results["summary"] = verdict_in_words(results, test)
        results["judging_s"] = round(judged - began, 3)
        (root / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        progress("writing the report")
        render(root)
        progress(f"judged in {judged - began:.1f} s, reported in {time.monotonic() - judged:.1f} s")
    return results


def _shout(results: dict[str, Any], contradicted: Sequence[str]) -> None:
    """Online checks found what the sealed run does not confirm: a failure of the harness, whatever else was found."""
    if results["verdict"] == Validity.VALID:
        results["verdict"] = str(Validity.UNKNOWN)
    words = f"The harness contradicts itself, and one of its judges is wrong: {' '.join(contradicted)}"
    results |= {"exit_code": HARNESS_FAILED, "contradiction": words, "summary": words}


def falsify(root: Path) -> Iterator[Mutant]:
    """The mutation check of a judged run (`checkers.mutation`): one mutant per row its verdict must hang on.

    Raises FileNotFoundError where the run was never judged.
    """
    spec = spec_of(root)
    checkers = checkers_for(spec, load_subject(spec.subject).declares)
    with tempfile.TemporaryDirectory(prefix="krucible-mutants-") as scratch:
        yield from mutants(root, checkers, spec.rng("mutants"), Path(scratch))
