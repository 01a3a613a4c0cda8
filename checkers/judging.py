"""Turns the files of a run into verdicts: it splits the run, judges every part and combines the findings.

The same functions judge parts in process and on Spark, so a run has the same verdict everywhere.  Any failure of a part
(a kernel that raises, memory that runs out, a missing file) makes that part *unknown* with its reason.  A failure never
stops the other parts, and never counts as valid.

*The mutation check.*  Falsify one row of a valid run on which the verdict must depend.  The verdict must become
invalid.

A broken checker calls everything valid, and a valid run does not reveal the error.  So the evidence of a valid run is
falsified, one row at a time, and judged again.  This file selects rows on which a verdict must depend, by reasoning
that uses no kernel: a written value in a log, an answer, an entry below a reported high watermark, a leader's epoch, a
vote in quorum-state.

If several writes wrote the same value to one register, the value identifies none of them: another write may explain a
log entry or an answer.  So the rows of such values are not falsified.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkers.base.checker import Budget, CannotJudge, Checker, Judged, Part, Task, TaskJudge, in_words, judge_task
from checkers.base.columns import COPIES, HISTORY, LOG, TRACE
from checkers.base.history import NEMESIS, Type
from checkers.base.results import CheckerResult, Results, RunVerdict
from checkers.base.stored_run import StoredRun, not_judged
from checkers.base.verdict import (
    DOUBTED,
    EXIT_CODES,
    VIOLATIONS_BY_KIND,
    Validity,
    Verdict,
    combine,
)
from checkers.record.header_and_outcome import RunOutcome
from checkers.record.run_record import FINAL_READS, JOURNAL, TEST
from checkers.replicas import INVENTED
from checkers.run_quality.evidence import COPIES_OF, EVIDENCE, HISTORY_ITSELF
from checkers.sealing.seal import seal

FROM_NOWHERE = frozenset({"value from nowhere", INVENTED})
"""Kinds of violations that an old state of the system cannot explain."""

Progress = Callable[[str], None]


class Verdicts(dict[str, Verdict]):
    """Verdicts by name of checker, in the order in which they were judged.

    checkers: name -> checker
    seconds: name -> duration of judging in seconds, summed over all parts
    judged_by: "in process", or Spark and its master
    """

    def __init__(self, checkers: Sequence[Checker] = ()) -> None:
        super().__init__()
        self.checkers = {checker.name: checker for checker in checkers}
        self.seconds: dict[str, float] = {}
        self.judged_by = "in process"


def judge_run(
    files: StoredRun,
    checkers: Sequence[Checker],
    spark: TaskJudge | None = None,
    progress: Progress | None = None,
    budget: Budget | None = None,
) -> Verdicts:
    """Judge a sealed run; the verdicts are the same, bit for bit, with and without `spark`.

    Checkers with the same `split` and `judge` share their parts: each part is judged once, and its time counts for the
    first of these checkers.  Never raises because of the content of the run's files.  If `spark` cannot run, the run is
    judged in process, and `judged_by` gives the reason: a finished test always gets a verdict.
    """
    say = progress or (lambda _: None)
    verdicts = Verdicts(checkers)
    firsts: dict[object, Checker] = {}
    for checker in checkers:
        firsts.setdefault((checker.split, checker.judge), checker)
    splits = {which: _split(files, checker) for which, checker in firsts.items()}
    tasks = [
        Task(checker.judge, part, budget or Budget())
        for which, checker in firsts.items()
        for part in splits[which].parts
        if spark is None or not checker.in_process
    ]
    if spark is None:
        judged = _in_process(tasks, say)
    else:
        judged, verdicts.judged_by = _on_spark(spark, tasks, say)
    at, found = 0, dict[object, Sequence[Judged]]()
    for checker in checkers:
        which = (checker.split, checker.judge)
        split, known = splits[which], found.get(which)
        if known is not None:
            mine = known
        elif spark is not None and checker.in_process:
            mine = [judge_task(Task(checker.judge, part, budget or Budget())) for part in split.parts]
        else:
            mine = judged[at : at + len(split.parts)]
            at += len(split.parts)
        found[which] = mine
        began = time.perf_counter()
        verdicts[checker.name] = _combine(files, checker, mine, split.failure)
        spent = time.perf_counter() - began
        spent += split.seconds + sum(j.seconds for j in mine) if known is None else 0.0
        verdicts.seconds[checker.name] = round(spent, 4)
    return verdicts


def set_aside_doubted(verdicts: Verdicts) -> None:
    """Turn a verdict from invalid to unknown if its violations depend only on evidence that the run itself refutes.

    The reason names this evidence.
    """
    doubted: dict[str, str] = {}
    for verdict in sorted(verdicts.values(), key=lambda each: each is not verdicts.get(EVIDENCE.name)):
        doubted = {**verdict.details.get(DOUBTED, {}), **doubted}
    for name, verdict in verdicts.items():
        if verdict.validity is not Validity.INVALID or name not in verdicts.checkers:
            continue
        if clause := _doubt(verdicts.checkers[name], verdict, doubted):
            count = verdict.looked_at.get("violations", len(verdict.witnesses))
            words = f"{count} violations rest on evidence that this run proves wrong ({clause})"
            reason = "; ".join(filter(None, (words, verdict.reason)))
            verdicts[name] = replace(verdict, validity=Validity.UNKNOWN, reason=reason, witnesses=())


def _doubt(checker: Checker, verdict: Verdict, doubted: Mapping[str, str]) -> str:
    """Return the clause that shows the error in the evidence; "" if other evidence shows the violations, too.

    doubted: evidence -> clause that shows its error
    """
    if grounds := [doubted[ground] for ground in sorted(checker.rests_on) if ground in doubted]:
        return grounds[0]
    if HISTORY_ITSELF in doubted and "history" in checker.needs:
        return doubted[HISTORY_ITSELF]
    if "logs" not in checker.needs:
        return ""
    shown = [[f"{COPIES_OF}{node}" for node in w.facts.get("nodes") or ()] for w in verdict.witnesses]
    each = [next((doubted[name] for name in names if name in doubted), "") for names in shown]
    return each[0] if each and all(each) else ""


def set_aside_unrecovered(verdicts: Verdicts, outcome: RunOutcome) -> None:
    """Turn a verdict from invalid to unknown if only final reads of an unrecovered system show its violations.

    Such reads may be stale if the demands permit this (`final_needs_recovery`).  A value that no client wrote is never
    just stale.
    """
    recovery, reading = outcome.recovery, outcome.phase(FINAL_READS)
    if recovery is None or recovery.recovered is not False or reading is None:
        return
    for name, verdict in verdicts.items():
        late = [any(event["index"] >= reading.first_row for event in w.events) for w in verdict.witnesses]
        if late and all(late) and not any(w.kind in FROM_NOWHERE for w in verdict.witnesses):
            words = f"read before the system had recovered, so the answer may be old: {verdict.witnesses[0].summary}"
            reason = "; ".join(filter(None, (words, verdict.reason)))
            verdicts[name] = replace(verdict, validity=Validity.UNKNOWN, reason=reason, witnesses=())


def results_of(verdicts: Mapping[str, Verdict]) -> Results:
    """Return the verdicts as results of a run (results/README.md).

    A run is unknown if no checker judged it, or if none of the checkers of its clients' answers could judge it.
    """
    overall = combine(verdict.validity for verdict in verdicts.values())
    known = verdicts.checkers if isinstance(verdicts, Verdicts) else {}
    seconds = verdicts.seconds if isinstance(verdicts, Verdicts) else {}
    unjudged = overall is Validity.VALID and _clients_unjudged(verdicts, known)
    if unjudged or overall is Validity.NOT_APPLICABLE:
        overall = Validity.UNKNOWN
    return Results(
        RunVerdict(overall),
        {
            name: CheckerResult.of(
                verdict,
                known[name].title if name in known else "",
                known[name].question if name in known else "",
                seconds.get(name, 0.0),
            )
            for name, verdict in verdicts.items()
        },
        EXIT_CODES[overall],
        _summary(overall, verdicts, known),
        judged_by=verdicts.judged_by if isinstance(verdicts, Verdicts) else "in process",
    )


@dataclass(frozen=True, slots=True)
class _Split:
    parts: Sequence[Part]
    failure: str
    seconds: float


def _split(files: StoredRun, checker: Checker) -> _Split:
    began = time.perf_counter()
    try:
        return _Split(list(checker.split(files)), "", time.perf_counter() - began)
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - this checker is unknown, the other checkers go on
        return _Split((), in_words(problem), time.perf_counter() - began)


def _in_process(tasks: Sequence[Task], say: Progress) -> list[Judged]:
    judged = []
    for number, task in enumerate(tasks, 1):
        judged.append(judge_task(task))
        say(f"judged {number} of {len(tasks)} parts")
    return judged


def _on_spark(spark: TaskJudge, tasks: Sequence[Task], say: Progress) -> tuple[list[Judged], str]:
    """Judge on Spark, or in process if Spark cannot run.  Returns (results, the place of judging in words)."""
    try:
        return spark.judge(tasks, lambda done, total: say(f"judged {done} of {total} parts")), spark.description
    except CannotJudge as problem:
        say(f"judging in process: {problem}")
        return _in_process(tasks, say), f"in process ({problem})"


def _combine(files: StoredRun, checker: Checker, judged: Sequence[Judged], split_failure: str) -> Verdict:
    """Return the checker's verdict on the judged parts; it is not valid if a part was not judged."""
    failures = [j.failure for j in judged if j.failure]
    if split_failure:
        return Verdict(Validity.UNKNOWN, reason=split_failure)
    if failures and len(failures) == len(judged):
        return Verdict(Validity.UNKNOWN, reason=_words_of_failures(failures, len(judged)))
    try:
        verdict = not_judged(files, checker.needs)
        if verdict is None:
            verdict = _sound(checker, checker.combine(files, [j.finding for j in judged if not j.failure]))
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - as above
        return Verdict(Validity.UNKNOWN, reason=in_words(problem))
    if not failures:
        return verdict
    reason = "; ".join(text for text in (verdict.reason, _words_of_failures(failures, len(judged))) if text)
    return replace(verdict, validity=combine((verdict.validity, Validity.UNKNOWN)), reason=reason)


def _words_of_failures(failures: Sequence[str], parts: int) -> str:
    return f"{len(failures)} of {parts} parts could not be judged: {failures[0]}"


def _clients_unjudged(verdicts: Mapping[str, Verdict], known: Mapping[str, Checker]) -> bool:
    """Return True if the workload named checkers of clients' answers but none of them is applicable."""
    of_clients = [verdicts[name].validity for name, checker in known.items() if "model" in checker.needs]
    return bool(of_clients) and set(of_clients) == {Validity.NOT_APPLICABLE}


def _summary(overall: Validity, verdicts: Mapping[str, Verdict], known: Mapping[str, Checker]) -> str:
    """Return one sentence for readers: the violation, the reason of an unknown verdict, or that all checkers hold."""
    bad = {name: verdict for name, verdict in verdicts.items() if verdict.validity is overall}
    titles = ", ".join(known[name].title if name in known else name for name in bad)
    if overall is Validity.INVALID:
        first = next(iter(bad.values())).witnesses[0]
        return f"violated: {titles}; {first.summary}"
    if overall is Validity.UNKNOWN:
        if not bad and any(verdict.validity is Validity.VALID for verdict in verdicts.values()):
            return "no checker judged what clients saw, so the verdict is unknown"
        if not bad:
            return "nothing was judged, so the verdict is unknown"
        return f"the verdict is unknown ({titles}): {next(iter(bad.values())).reason}"
    return f"all {len(verdicts)} checkers hold"


# Users may write checkers. A bug in a user's checker must neither lose other verdicts nor falsify the combined verdict.
# A result that is no verdict, or that cannot be written to results.json, becomes unknown. So does a valid verdict that
# examined nothing.


def _sound(checker: Checker, returned: Any) -> Verdict:
    """Return the checker's result if it is a well-formed verdict, else an unknown verdict that names the checker."""
    if not isinstance(returned, Verdict):
        return Verdict(Validity.UNKNOWN, reason=f"{checker.name} returned {returned!r:.60}, which is no Verdict")
    if wrong := _wrong_looked_at(returned.looked_at) or _wrong_counts(returned) or _not_json(returned):
        return Verdict(Validity.UNKNOWN, reason=f"{checker.name} returned {returned.validity}, but {wrong}")
    if returned.validity is Validity.VALID and not checker.about_the_run and not _looked_at_anything(returned):
        reason = f"{checker.name} returned valid, but it looked at nothing: no figure in its looked_at is positive"
        return Verdict(Validity.UNKNOWN, returned.looked_at, reason, details=returned.details)
    return returned


def _wrong_looked_at(looked_at: Any) -> str:
    """Return the reason why `looked_at` is no JSON object of numbers and words; "" if it is one."""
    if not isinstance(looked_at, Mapping):
        return f"its looked_at is {looked_at!r:.60}, and a dict of numbers and words is expected"
    for name, value in looked_at.items():
        if not isinstance(name, str):
            return f"its looked_at has the key {name!r:.60}, which is no text"
        if not isinstance(value, int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
            return f"{name!r} in its looked_at is {value!r:.60}, which is neither a number nor words"
    return ""


def _wrong_counts(verdict: Verdict) -> str:
    """Return the reason why a count of violations by kind is no JSON object of numbers; "" if it is one or missing."""
    counted = verdict.details.get(VIOLATIONS_BY_KIND, {}) if isinstance(verdict.details, Mapping) else {}
    if isinstance(counted, Mapping) and all(type(kind) is str and type(n) is int for kind, n in counted.items()):
        return ""
    return f"its {VIOLATIONS_BY_KIND} is {counted!r:.60}, and a dict of kinds and numbers is expected"


def _not_json(verdict: Verdict) -> str:
    """Return the reason why the verdict cannot be written to results.json; "" if it can."""
    try:
        json.dumps(verdict.to_json())
    except (TypeError, ValueError, AttributeError) as problem:
        return f"its witnesses or details cannot be written as JSON ({problem})"
    return ""


def _looked_at_anything(verdict: Verdict) -> bool:
    return any(value != "" if isinstance(value, str) else value > 0 for value in verdict.looked_at.values())


Row = dict[str, Any]
NEVER_WRITTEN = 10**15
FAR_AHEAD = 1000
"""Epoch that no run reaches."""


@dataclass
class Evidence:
    """The tables of a sealed run as rows that can be changed; logs and traces by node.  Missing tables are empty."""

    history: list[Row]
    logs: dict[str, list[Row]]
    traces: dict[str, list[Row]]
    copies: list[Row]

    def final_log_rows(self) -> Iterator[Row]:
        last = max((row["copy"] for row in self.copies), default=-1)
        return (row for rows in self.logs.values() for row in rows if row["copy"] == last)

    def traced(self, event: str) -> list[Row]:
        return [row for rows in self.traces.values() for row in rows if row["event"] == event]


Mutate = Callable[[Evidence, Random], Row | None]
"""Function that changes one row and returns it; returns None if the run has no suitable row."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One falsified run.

    name: name of the mutation
    row: the changed row
    noticed: True if the verdict became invalid
    by: names of the checkers that found a violation
    """

    name: str
    row: Row
    noticed: bool
    by: tuple[str, ...]


def mutants(run: StoredRun, checkers: Sequence[Checker], rng: Random, scratch: Path) -> Iterator[Mutant]:
    """Yield one mutant for each mutation that finds a suitable row in this run.

    scratch: an empty folder for the falsified runs
    """
    for name, mutate in MUTATIONS.items():
        evidence = load(run)
        row = mutate(evidence, rng)
        if row is None:
            continue
        falsified = scratch / name
        write(evidence, run, falsified)
        verdicts = judge_run(StoredRun(falsified, run.demands), checkers)
        by = tuple(c for c, verdict in verdicts.items() if verdict.validity is Validity.INVALID)
        yield Mutant(name, row, combine(v.validity for v in verdicts.values()) is Validity.INVALID, by)
        shutil.rmtree(falsified)


def load(files: StoredRun) -> Evidence:
    def by_node(folder: Path) -> dict[str, list[Row]]:
        return {path.stem: pq.read_table(path).to_pylist() for path in sorted(folder.glob("*.parquet"))}

    return Evidence(
        history=pq.read_table(files.history).to_pylist(),
        logs=by_node(files.log),
        traces=by_node(files.trace),
        copies=[dict(row) for row in files.copies],
    )


def write(evidence: Evidence, source: StoredRun, folder: Path) -> None:
    """Write a run folder with this evidence, and with the other files of `source`."""
    target = StoredRun(folder)
    folder.mkdir(parents=True)
    for plain in (source.root / name for name in (TEST, JOURNAL)):
        if plain.exists():
            shutil.copy(plain, folder)
    pq.write_table(pa.Table.from_pylist(evidence.history, schema=HISTORY), target.history)
    seal(folder)
    for place, tables, schema in ((target.log, evidence.logs, LOG), (target.trace, evidence.traces, TRACE)):
        for node, rows in tables.items():
            place.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), place / f"{node}.parquet")
    if evidence.copies:
        pq.write_table(pa.Table.from_pylist(evidence.copies, schema=COPIES), target.copies_table)


# In the history.


def acknowledged_write_that_failed(evidence: Evidence, rng: Random) -> Row | None:
    """Turn a write into a failed one, although a log contains it or a read returned it."""
    seen = {(row["key"], row["value"]) for row in evidence.final_log_rows()}
    seen |= {(row["key"], row["value"]) for row in _answers(evidence, "read")}
    seen &= _written_once(evidence)
    return _changed(rng, (r for r in _answers(evidence, "write") if (r["key"], r["value"]) in seen), type=Type.FAIL)


def answer_never_written(evidence: Evidence, rng: Random) -> Row | None:
    return _changed(rng, _answers(evidence, "read"), value=NEVER_WRITTEN)


def answer_from_the_past(evidence: Evidence, rng: Random) -> Row | None:
    """Make the last read of a key return the first value that was read from this key, if the two values differ."""
    by_key: dict[str, list[Row]] = {}
    once = _written_once(evidence)
    for row in _answers(evidence, "read"):
        if (row["key"], row["value"]) in once:
            by_key.setdefault(row["key"], []).append(row)
    stale = [(rows[-1], rows[0]["value"]) for rows in by_key.values() if rows[-1]["value"] != rows[0]["value"]]
    if not stale:
        return None
    last, old = rng.choice(stale)
    last["value"] = old
    return last


# In the logs.


def logged_value_never_written(evidence: Evidence, rng: Random) -> Row | None:
    ok = {(row["key"], row["value"]) for row in _answers(evidence, "write")} & _written_once(evidence)
    return _changed(rng, (r for r in evidence.final_log_rows() if (r["key"], r["value"]) in ok), value=NEVER_WRITTEN)


def committed_entry_of_other_content(evidence: Evidence, rng: Random) -> Row | None:
    row = _picked(rng, _committed(evidence))
    if row is not None:
        row["checksum"] ^= 1
    return row


def committed_entry_of_another_epoch(evidence: Evidence, rng: Random) -> Row | None:
    return _changed(rng, _committed(evidence), epoch=FAR_AHEAD)


# In the traces.


def mark_over_another_prefix(evidence: Evidence, rng: Random) -> Row | None:
    row = _picked(rng, [r for r in evidence.traced("high-watermark") if r["hash"] is not None])
    if row is not None:
        row["hash"] ^= 1
    return row


def another_state_at_a_shared_offset(evidence: Evidence, rng: Random) -> Row | None:
    rows = evidence.traced("applied")
    nodes_at: dict[int, set[str]] = {}
    for row in rows:
        nodes_at.setdefault(row["offset"], set()).add(row["node"])
    chosen = _picked(rng, [r for r in rows if len(nodes_at[r["offset"]]) > 1])
    if chosen is not None:
        chosen["hash"] ^= 1
    return chosen


def leader_of_an_epoch_another_led(evidence: Evidence, rng: Random) -> Row | None:
    rows = [row for row in evidence.traced("role") if row["role"] == "leader"]
    pairs = [(row, other["epoch"]) for row in rows for other in rows if other["node"] != row["node"]]
    if not pairs:
        return None
    leader, epoch = rng.choice(pairs)
    leader["epoch"] = epoch
    return leader


def leader_that_began_with_nothing(evidence: Evidence, rng: Random) -> Row | None:
    """Make a leader's log empty at its election, although entries were committed in an earlier epoch."""
    marks = [r["epoch"] for r in evidence.traced("high-watermark") if r["offset"]]
    later = [r for r in evidence.traced("role") if r["role"] == "leader" and marks and r["epoch"] > min(marks)]
    return _changed(rng, (r for r in later if r["offset"]), offset=0)


def vote_quorum_state_does_not_hold(evidence: Evidence, rng: Random) -> Row | None:
    last = max((row["copy"] for row in evidence.copies), default=-1)
    held = {(c["node"], c["quorum_epoch"]) for c in evidence.copies if c["copy"] == last and c["voted_for"]}
    return _changed(rng, (r for r in evidence.traced("vote") if (r["node"], r["epoch"]) in held), peer="n0")


MUTATIONS: dict[str, Mutate] = {
    mutate.__name__: mutate
    for mutate in (
        acknowledged_write_that_failed,
        answer_never_written,
        answer_from_the_past,
        logged_value_never_written,
        committed_entry_of_other_content,
        committed_entry_of_another_epoch,
        mark_over_another_prefix,
        another_state_at_a_shared_offset,
        leader_of_an_epoch_another_led,
        leader_that_began_with_nothing,
        vote_quorum_state_does_not_hold,
    )
}


def _answers(evidence: Evidence, f: str) -> list[Row]:
    return [r for r in evidence.history if r["process"] != NEMESIS and r["type"] == Type.OK and r["f"] == f]


def _written_once(evidence: Evidence) -> set[tuple[str, str]]:
    """Return the pairs (key, value) with exactly one invoked write."""
    invoked = Counter(
        (r["key"], r["value"]) for r in evidence.history if r["f"] == "write" and r["type"] == Type.INVOKE
    )
    return {pair for pair, count in invoked.items() if count == 1}


def _committed(evidence: Evidence) -> list[Row]:
    marks = [row["offset"] for row in evidence.traced("high-watermark")]
    return [row for row in evidence.final_log_rows() if marks and row["offset"] < max(marks) - 1]


def _picked(rng: Random, rows: Iterable[Row]) -> Row | None:
    choice = list(rows)
    return rng.choice(choice) if choice else None


def _changed(rng: Random, rows: Iterable[Row], **changes: Any) -> Row | None:
    row = _picked(rng, rows)
    if row is not None:
        row.update(changes)
    return row
