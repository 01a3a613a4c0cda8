"""Measurements that a machine itself made of its processors while a run lasted: who waited for one, and for how long.

A system may be blamed, or a machine, and only a measurement decides.  The agents report two of Linux, every few
seconds, each as a sum since the boot or the start:

    pressure_s      seconds in which at least one process of the machine waited for a processor (/proc/pressure/cpu)
    waited_s, ran_s seconds that the threads of the node's server waited for a processor, and ran (/proc/PID/schedstat)

Time that a hypervisor took away is a third (`steal_s`).  A kernel may lack each of them; what was not measured is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from checkers.record.header_and_outcome import RunOutcome

PRESSURE_MOST = 0.5
"""A larger share of the time in which some process waited means that the machine was busy."""
WAITED_MOST = 0.1
"""A server whose threads waited for a larger share of the time did not have its processor."""
STARVED = 0.5
"""From this share of the time on, waiting explains that a server does not answer."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of a span of time.  waited: may be above 1, for a server has many threads.  None: not measured."""

    pressure: float | None = None
    waited: float | None = None


def shares_between(outcome: RunOutcome, begin_ns: int, end_ns: int) -> dict[str, Shares]:
    """Node -> what was measured from the last sample before the span to the first one after it."""
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
    """Return the reasons why the machine did not let its nodes run, in clauses; [] if it did or nothing was measured.

    most: the largest share for which a server may wait."""
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
    """Return why the machine may be to blame for a span without answers; "" if its own measurements do not say so.

    A processor that others use all the time is no excuse while the servers got theirs, so only what servers waited
    for counts, and stalls of the harness' own loop, which hands out all operations."""
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
    """Return the share of a span by which a sum grew.  A server that was started again begins anew."""
    known = [value for value in sums if value is not None and value >= 0]
    if len(known) < 2:
        return None
    return sum(max(0.0, after - before) for before, after in pairwise(known)) / span_s
