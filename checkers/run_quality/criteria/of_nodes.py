"""Did every node hand over its log and its trace, and did the harness and the nodes get their processor time?"""

from __future__ import annotations

import pyarrow.parquet as pq

from checkers.base.demands import Demands
from checkers.base.results import Criterion
from checkers.base.stored_run import FINAL_COPY, StoredRun, node_files
from checkers.record.outcome import RunOutcome
from checkers.run_quality import processor_time
from checkers.run_quality.criteria.history_figures import HistoryFigures

STEAL_LIMIT_S = 0.5


def about_nodes(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """What the nodes of a system with logs and traces must have handed over."""
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
    """Whether the harness itself kept up.  These figures are shown next to the verdict and not demanded.

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
