"""Turns the files of a run into verdicts: it splits the run, judges every part and combines the findings.

The same functions judge parts in process and on Spark, so a run has one verdict everywhere.  Any failure of a part (a
kernel that raises, memory that runs out, a missing file) makes that part *unknown* with its reason.  It never stops the
other parts, and never counts as valid.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from checkers.base.checker import Budget, Checker, Part
from checkers.base.results import CheckerResult, Results, RunVerdict
from checkers.base.run_evidence import not_judged
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import (
    DOUBTED,
    EXIT_CODES,
    MAX_WITNESSES,
    VIOLATIONS_BY_KIND,
    Validity,
    Verdict,
    Witness,
    combine,
)
from checkers.judging.tasks import CannotJudge, Judged, Task, TaskJudge, in_words, judge_task
from checkers.record.journal import FINAL_READS
from checkers.record.outcome import RunOutcome
from checkers.replicas.convergence import INVENTED
from checkers.run_quality.evidence import COPIES_OF, EVIDENCE, HISTORY_ITSELF

FROM_NOWHERE = frozenset({"value from nowhere", INVENTED})
"""Kinds of violation that no old state explains."""

Progress = Callable[[str], None]


class Verdicts(dict[str, Verdict]):
    """Verdicts by name of checker, in the order judged.

    seconds: of work per checker, summed over all places that worked.  judged_by: "in process", or Spark and its master.
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
    """Judge a sealed run; the verdicts are the same, bit for bit, whether `spark` is given or not.

    Checkers with the same `split` and `judge` share their parts: each part is judged once, and its time counts for the
    first of them.  Never raises because of the content of the run's files.  If the chosen Spark cannot run, the run is
    judged in process, and `judged_by` records that: a finished test is never left without its verdict.
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
    """Turn violations into unknown verdicts that rest only on what the run itself proves wrong; the reason names it."""
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
    """The sentence that shows what is wrong; "" if something else shows the violations."""
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
    """Turn violations into unknown verdicts that only final reads of a system show that had not recovered.

    They may be old, where the demands say so (`final_needs_recovery`).  A value that nobody wrote is never old."""
    recovery, reading = outcome.recovery, outcome.phase(FINAL_READS)
    if recovery is None or recovery.recovered is not False or reading is None:
        return
    for name, verdict in verdicts.items():
        late = [any(event["index"] >= reading.first_row for event in w.events) for w in verdict.witnesses]
        if late and all(late) and not any(w.kind in FROM_NOWHERE for w in verdict.witnesses):
            words = f"read while the system had not recovered, so it may have been old: {verdict.witnesses[0].summary}"
            reason = "; ".join(filter(None, (words, verdict.reason)))
            verdicts[name] = replace(verdict, validity=Validity.UNKNOWN, reason=reason, witnesses=())


def results_of(verdicts: Mapping[str, Verdict]) -> Results:
    """The verdicts as results of a run (results/README.md).

    If nothing was judged, the run is unknown: a run that no checker looked at has not passed.  A run is unknown, too,
    if no checker of what its clients saw could judge it.
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
    except (Exception, SystemExit) as problem:  # noqa: BLE001 - what cannot even be opened is unknown, others go on
        return _Split((), in_words(problem), time.perf_counter() - began)


def _in_process(tasks: Sequence[Task], say: Progress) -> list[Judged]:
    judged = []
    for number, task in enumerate(tasks, 1):
        judged.append(judge_task(task))
        say(f"judged {number} of {len(tasks)} parts")
    return judged


def _on_spark(spark: TaskJudge, tasks: Sequence[Task], say: Progress) -> tuple[list[Judged], str]:
    """Judge on Spark, or in process if Spark cannot run.  Also returns in words where it was judged."""
    try:
        return spark.judge(tasks, lambda done, total: say(f"judged {done} of {total} parts")), spark.description
    except CannotJudge as problem:
        say(f"judging in process: {problem}")
        return _in_process(tasks, say), f"in process ({problem})"


def _combine(files: StoredRun, checker: Checker, judged: Sequence[Judged], split_failure: str) -> Verdict:
    """The checker's verdict on the judged parts.  It is never better than unknown if some parts were not judged."""
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
    """Return whether the workload named checkers of what clients saw, and none of them is applicable."""
    of_clients = [verdicts[name].validity for name, checker in known.items() if "model" in checker.needs]
    return bool(of_clients) and set(of_clients) == {Validity.NOT_APPLICABLE}


def _summary(overall: Validity, verdicts: Mapping[str, Verdict], known: Mapping[str, Checker]) -> str:
    """One sentence for people: the violation, or why the verdict is unknown, or that all checkers hold."""
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


def worst(witnesses: Sequence[Witness], order: Sequence[str]) -> tuple[Witness, ...]:
    """At most MAX_WITNESSES witnesses, sorted by the place of their kind in `order`; kinds that it lacks come last."""
    rank = {kind: place for place, kind in enumerate(order)}
    return tuple(sorted(witnesses, key=lambda w: rank.get(w.kind, len(rank)))[:MAX_WITNESSES])


# Anybody may write a checker, and a slip in it must cost neither the other verdicts nor the truth of the whole.  What
# is no verdict, or cannot be written to results.json, is unknown, and so is a valid verdict that rests on nothing.


def _sound(checker: Checker, returned: Any) -> Verdict:
    """Return what the checker returned if it is a sound verdict, else an unknown verdict that names the checker."""
    if not isinstance(returned, Verdict):
        return Verdict(Validity.UNKNOWN, reason=f"{checker.name} returned {returned!r:.60}, which is no Verdict")
    if wrong := _wrong_looked_at(returned.looked_at) or _wrong_counts(returned) or _not_json(returned):
        return Verdict(Validity.UNKNOWN, reason=f"{checker.name} returned {returned.validity}, but {wrong}")
    if returned.validity is Validity.VALID and not checker.about_the_run and not _looked_at_anything(returned):
        reason = f"{checker.name} returned valid, but it looked at nothing: no figure in its looked_at is positive"
        return Verdict(Validity.UNKNOWN, returned.looked_at, reason, details=returned.details)
    return returned


def _wrong_looked_at(looked_at: Any) -> str:
    """Why this is no JSON object of numbers and words; "" if it is one."""
    if not isinstance(looked_at, Mapping):
        return f"its looked_at is {looked_at!r:.60}, and a dict of numbers and words is expected"
    for name, value in looked_at.items():
        if not isinstance(name, str):
            return f"its looked_at has the key {name!r:.60}, which is no text"
        if not isinstance(value, int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
            return f"{name!r} in its looked_at is {value!r:.60}, which is neither a number nor words"
    return ""


def _wrong_counts(verdict: Verdict) -> str:
    """Why its count of violations is no JSON object of numbers; "" if it is one, or if there is none."""
    counted = verdict.details.get(VIOLATIONS_BY_KIND, {}) if isinstance(verdict.details, Mapping) else {}
    if isinstance(counted, Mapping) and all(type(kind) is str and type(n) is int for kind, n in counted.items()):
        return ""
    return f"its {VIOLATIONS_BY_KIND} is {counted!r:.60}, and a dict of kinds and numbers is expected"


def _not_json(verdict: Verdict) -> str:
    """Why the verdict cannot be written to results.json; "" if it can."""
    try:
        json.dumps(verdict.to_json())
    except (TypeError, ValueError, AttributeError) as problem:
        return f"its witnesses or details cannot be written as JSON ({problem})"
    return ""


def _looked_at_anything(verdict: Verdict) -> bool:
    return any(value != "" if isinstance(value, str) else value > 0 for value in verdict.looked_at.values())
