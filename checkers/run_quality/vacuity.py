"""Was it a real test?  A run in which nothing happened proves nothing, even if every other verdict is valid.

Each criterion is a figure with its minimum.  A shortfall makes the verdict *unknown*, never invalid: nothing was
violated, but nothing was shown either.  Nothing is demanded of parts that a subject does not have.  Some figures
are only shown, and the reader weighs them.  Examples are whether the harness kept up, and how many answers deposed
leaders gave (counted by comparing clocks of one machine).

A run that ended early, as soon as an online check had found a violation, is not meant to be a whole test.  Its figures
are shown, and the verdict is *not applicable*.  Such a run is never valid: either the sealed run confirms the
violation, or the harness contradicts itself (`harness/judge/judge_run.py`).

`Verdict.details["criteria"]` is a list of {"name", "value", "least", "met", "demanded", "words", "advice"}, in the
order in which a report shows them.  `details["never_in_force"]` is a list of {"kind", "dealt", "reasons"}, sorted by
kind.  It names the kinds of fault that the run was to inject and of which no fault was in force.
`details["waived"]` is a list of {"name", "shortfall"}: the demands that the user waived by name.
`details["never_invoked"]` is a sorted list of the functions that the workload states and no client invoked.

Did every node hand over its log and its trace, and did the harness and the nodes get their processor time?
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow.parquet as pq

from checkers.base.checker import Checker, Part
from checkers.base.clocks import one_clock
from checkers.base.demands import Demands
from checkers.base.results import Criterion
from checkers.base.run_evidence import conclude
from checkers.base.stored_run import FINAL_COPY, StoredRun, node_files
from checkers.base.verdict import Validity, Verdict
from checkers.record.outcome import RunOutcome, Stopped
from checkers.run_quality import processor_time
from checkers.run_quality.criteria.history_figures import HistoryFigures, figures_of, joined
from checkers.run_quality.criteria.of_answers import about_operations, about_stretches, about_the_rate, never_invoked
from checkers.run_quality.criteria.of_faults import NO_NEMESIS, about_faults, never_in_force
from checkers.run_quality.criteria.spans import END_OF_TIME, calm_spans, main_phase, stretches_of, windows
from checkers.run_quality.criteria.waivers import waived
from checkers.sealing.history_rows import parts_of_history


def _split(run: StoredRun) -> list[Part]:
    if not run.history.exists():
        return []
    final = run.outcome.phase("final reads")
    params = {
        "windows": windows(run.faults),
        "final_ns": final.start_ns if final is not None else END_OF_TIME,
        "main": main_phase(run),
        "calm": calm_spans(run),
        "stretches": [(s.begin_ns, s.end_ns, s.early_ns) for s in stretches_of(run)],
        "traces": list(node_files(run.trace).values()) if one_clock(run.header) else [],
        "reads": sorted(run.demands.reads),
        "writes": sorted(run.demands.writes),
    }
    return parts_of_history(run.history, params)


def _combine(run: StoredRun, findings: Sequence[HistoryFigures]) -> Verdict:
    figures = joined(findings)
    outcome = run.outcome
    demands = run.demands
    criteria = _about_the_run(outcome)
    if demands.faults and demands.nemesis != NO_NEMESIS:
        criteria += about_faults(run, figures)
    criteria += about_operations(run, figures) + about_stretches(run, figures)
    if demands.nodes:
        criteria += about_nodes(run, figures)
    criteria += about_the_rate(run, figures) if len(figures.keys) else []
    criteria += about_the_harness(outcome, demands, next(iter(main_phase(run)), None))
    criteria, left_out = waived(criteria, demands.waived)
    if demands.ends_early and outcome.stopped is not None:
        return _of_a_stopped_run(outcome.stopped, criteria, figures)
    short = [c.shortfall() for c in criteria if c.demanded and not c.met]
    looked_at = {
        "criteria": sum(c.demanded for c in criteria),
        "met": sum(c.demanded and c.met for c in criteria),
        "ok operations": figures.ok,
    }
    unknown = [] if run.history.exists() else ["there is no sealed history"]
    if run.record.outcome is None:  # what would be short is short because of that
        unknown, short = [*unknown, "the harness did not come to its end"], []
    details = {
        "criteria": [c.to_json() for c in criteria],
        "never_in_force": never_in_force(demands, run.faults),
        "never_invoked": never_invoked(demands, figures),
        "waived": left_out,
    }
    return conclude((), looked_at, unknown + short, details)


def _of_a_stopped_run(stopped: Stopped, criteria: Sequence[Criterion], figures: HistoryFigures) -> Verdict:
    words = f"the run ended {stopped.time_ns / 1e9:.1f} s after it began, when {stopped.checker} was violated"
    shown = [replace(c, demanded=False).to_json() for c in criteria]
    return Verdict(Validity.NOT_APPLICABLE, {"ok operations": figures.ok}, words, details={"criteria": shown})


def _about_the_run(outcome: RunOutcome) -> list[Criterion]:
    ended = not outcome.interrupted and not outcome.set_up_failure
    why = f": {outcome.set_up_failure}" if outcome.set_up_failure else ""
    return [Criterion("ran to its end", int(ended), 1, f"the run was neither interrupted nor given up in set-up{why}")]


VACUITY = Checker(
    name="vacuity",
    title="Was it a real test?",
    question="Did enough happen, and under faults that were really there, for a verdict to mean something?",
    split=_split,
    judge=figures_of,
    combine=_combine,
    about_the_run=True,
)


STEAL_LIMIT_S = 0.5


def about_nodes(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """Return the criteria on logs and traces that nodes must have handed over."""
    everyone = run.servers
    criteria = []
    if run.demands.logs:
        readable = {c["node"] for c in run.copies if c["when"] == FINAL_COPY and not c["error"]}
        damaged = set(run.damaged_from) & set(everyone)
        words = f"; faults damaged the disk of {', '.join(sorted(damaged))}" if damaged else ""
        criteria.append(
            Criterion(
                "nodes with a final log",
                len(readable & set(node_files(run.log)) & set(everyone)),
                max(1, len(everyone) - len(damaged)),
                f"whose data directory was copied at the end and could be read{words}",
            )
        )
    if run.demands.traces:
        spoke = {node for node, file in node_files(run.trace).items() if pq.read_metadata(file).num_rows}
        delivered = len(spoke & set(everyone))
        criteria.append(Criterion("nodes with a trace", delivered, max(1, len(everyone)), "which recorded their steps"))
        if figures.deposed >= 0:
            words = f"of them {figures.deposed_reads} reads; counted by the clocks of one machine, for display only"
            criteria.append(Criterion("operations answered by a deposed leader", figures.deposed, 0, words, False))
    return criteria


def about_the_harness(outcome: RunOutcome, demands: Demands, span: tuple[int, int] | None = None) -> list[Criterion]:
    """Return figures that show if the harness kept up.  They stand next to the verdict and are not demanded.

    span: of the main phase, in ns."""
    criteria = []
    stalls = outcome.loop_stalls
    longest = max((stall.stall_ms for stall in stalls), default=0)
    counted = "1 stall" if len(stalls) == 1 else f"{len(stalls)} stalls"
    words = f"{counted} of the harness' own loop over 500 ms, the longest {longest:.0f} ms"
    criteria.append(Criterion("harness kept up", int(not stalls), 1, words, False))
    if demands.nodes:
        robbed = [f"{node} lost {s:g} s" for node, s in sorted(outcome.steal_s.items()) if s > STEAL_LIMIT_S]
        shares = {} if span is None else processor_time.shares_between(outcome, *span)
        not_so = [*robbed, *processor_time.busy_in_words(shares)]
        words = f"no node lost more than {STEAL_LIMIT_S:g} s of CPU to its host"
        words += ", and none waited for a processor for long" if shares else "; who waited for one was not measured"
        words += f"; not so: {', '.join(not_so)}" if not_so else ""
        criteria.append(Criterion("nodes had their CPU", int(not not_so), 1, words, False))
    return criteria
