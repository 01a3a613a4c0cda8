"""Measurements of a machine's CPU during a run: which processes waited for a processor, and for how long.

Only a measurement can decide if a delay was caused by the system or by the machine.  The agents report two measurements
of Linux every few seconds, as sums since the boot or since the start of the process:

    pressure_s      seconds in which at least one process of the machine waited for a processor (/proc/pressure/cpu)
    waited_s, ran_s seconds that the threads of the node's server waited for a processor, and ran (/proc/PID/schedstat)

A third is the time that a hypervisor took away (`steal_s`).  A kernel may lack any of these; a missing one is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from checkers.record.header_and_outcome import RunOutcome

PRESSURE_MOST = 0.5
"""Maximum fraction of time in which some process waits for a processor on a machine that is not busy."""
WAITED_MOST = 0.1
"""Maximum fraction of time for which the threads of a server may wait for a processor."""
STARVED = 0.5
"""Minimum fraction of time that must be spent waiting to explain that a server does not answer."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Fractions of a span of time; None if not measured.

    pressure: fraction in which some process of the machine waited for a processor
    waited: waiting time of all threads of the server; may exceed 1, because a server has many threads
    """

    pressure: float | None = None
    waited: float | None = None


def shares_between(outcome: RunOutcome, begin_ns: int, end_ns: int) -> dict[str, Shares]:
    """Return {node: shares from the last sample before the span to the first sample after it}."""
    found = {}
    for node, samples in outcome.processor.items():
        times = [sample.time_ns for sample in samples]
        first = max((i for i, t in enumerate(times) if t <= begin_ns), default=0)
        last = min((i for i, t in enumerate(times) if t >= end_ns), default=len(times) - 1)
        if last <= first:
            continue
        span_s = (times[last] - times[first]) / 1e9
        if span_s > 0:
            within = samples[first : last + 1]
            found[node] = Shares(
                _grown([sample.pressure_s for sample in within], span_s),
                _grown([sample.waited_s for sample in within], span_s),
            )
    return found


def busy_in_words(shares: Mapping[str, Shares], most: float = WAITED_MOST) -> list[str]:
    """Return clauses with the reasons why nodes did not get enough CPU; [] if they did or nothing was measured.

    most: maximum fraction of time for which a server may wait"""
    words = []
    pressures = [each.pressure for each in shares.values() if each.pressure is not None]
    if pressures and max(pressures) > max(PRESSURE_MOST, most):
        words.append(f"processes waited for a processor for {max(pressures):.0%} of the time")
    for node, each in sorted(shares.items()):
        if each.waited is not None and each.waited > most:
            many = f"{each.waited:.1f} threads of the server of {node} waited for a processor at a time"
            one = f"the server of {node} waited for a processor for {each.waited:.0%} of the time"
            words.append(many if each.waited > 1 else one)
    return words


def starved(outcome: RunOutcome, begin_ns: int, end_ns: int) -> str:
    """Return the reason why the machine may have caused a span without answers; "" if its measurements do not show one.

    A busy machine is no excuse if the servers got enough CPU.  So only waiting times of servers count, and stalls of
    the harness' event loop, which starts all operations."""
    span_ns = max(end_ns - begin_ns, 1)
    waited = {node: Shares(None, each.waited) for node, each in shares_between(outcome, begin_ns, end_ns).items()}
    words = busy_in_words(waited, STARVED)
    stalled_ns = 0
    for stall in outcome.loop_stalls:
        from_ns = stall.time_ns - int(stall.stall_ms * 1e6)
        stalled_ns += max(0, min(stall.time_ns, end_ns) - max(from_ns, begin_ns))
    if stalled_ns > STARVED * span_ns:
        words.append(f"the harness' own loop stood still for {stalled_ns / span_ns:.0%} of that time")
    return " and ".join(words)


def _grown(sums: Sequence[float | None], span_s: float) -> float | None:
    """Return the growth of a sum as a fraction of the span.  The sum of a restarted server begins at 0 again."""
    known = [value for value in sums if value is not None and value >= 0]
    if len(known) < 2:
        return None
    return sum(max(0.0, after - before) for before, after in pairwise(known)) / span_s
