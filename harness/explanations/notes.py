"""What a reader must know beside the verdict: how the run ended, and whether the harness kept up with its own plan."""

from __future__ import annotations

from checkers.base.results import Results, RunVerdict
from checkers.record.outcome import RunOutcome
from checkers.run_quality.processor_time import busy_in_words, shares_between
from harness.explanations.kinds_never_in_force import kinds_never_in_force, why_never_in_force
from harness.plain_words import listed, seconds, sentence, shorten

REFUSED_MIN = 10
"""So many operations of unknown outcome that were refused a connection are worth a sentence."""


def notes(results: Results, outcome: RunOutcome) -> list[str]:
    """What a reader must know next to the verdict, one sentence each; above all how far the harness itself kept up."""
    out = []
    if outcome.set_up_failure:
        out.append(f"Set-up failed: {sentence(shorten(outcome.set_up_failure))}")
    if outcome.interrupted:
        out.append("The run was interrupted: it is judged as far as it went.")
    if stopped := outcome.stopped:
        what, at = sentence(shorten(stopped.summary)), seconds(stopped.time_ns, 1)
        out.append(f"The run was stopped early, {at} after it began, by an online check of {stopped.checker}: {what}")
    if outcome.online is not None and (failure := outcome.online.failure):
        out.append(f"Online checks failed and were given up ({shorten(failure)}); the sealed run was judged in full.")
    kinds = kinds_never_in_force(results) if results.verdict is not RunVerdict.VALID else []  # else in the headline
    if kinds:
        were = "This kind of fault was" if len(kinds) == 1 else "These kinds of fault were"
        out.append(" ".join([f"{were} never in force: {listed(kinds)}.", *why_never_in_force(results)]))
    if unused := results.vacuity.never_invoked:
        out.append(
            f"The workload states {listed(unused)}, and no client invoked {'it' if len(unused) == 1 else 'them'}."
        )
    if (refused := results.statistics.refused_connections) >= REFUSED_MIN:
        out.append(
            f"{refused:,} operations are of unknown outcome although a connection was refused: let the client connect "
            "in `open`, or they excuse what was lost."
        )
    wanted, got = outcome.scheduled_rate_hz, outcome.achieved_rate_hz
    if got is not None and 0 < got < 0.8 * wanted:
        out.append(f"Outside faults clients reached {got:.0f} operations a second of the {wanted:.0f} scheduled.")
    stalls = [int(stall.stall_ms) for stall in outcome.loop_stalls]
    if stalls:
        times = "once" if len(stalls) == 1 else f"{len(stalls)} times"
        out.append(f"The harness’ own loop stalled {times}, for up to {max(stalls):,} ms.")
    steal = {n: s for n, s in outcome.steal_s.items() if s > 0.5}
    if steal:
        lost = listed([f"{n} {s:.1f} s" for n, s in sorted(steal.items())])
        out.append(f"The machine took CPU time away from nodes: {lost}.")
    main = outcome.phase("main")
    span = (main.start_ns, main.end_ns) if main is not None and main.end_ns > main.start_ns else None
    if span is not None and (busy := busy_in_words(shares_between(outcome, *span))):
        out.append(f"The machine was busy: {'; '.join(busy)}.")
    return out
