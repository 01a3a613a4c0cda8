"""The offset of a node's clock: the truth lies within the bound, even if the network delays the answers."""

from __future__ import annotations

from random import Random

import pytest

from harness.backends.ssh_backend import KEPT_EVERY_NS, ClockReading, NodeClock

MS, S = 1_000_000, 1_000_000_000


def test_without_a_reading_there_is_no_offset() -> None:
    with pytest.raises(ValueError, match="never read"):
        NodeClock().offset()


def test_one_reading_bounds_the_difference_within_its_round_trip() -> None:
    clock = NodeClock()
    clock.add(ClockReading(sent_ns=0, node_ns=5 * S, received_ns=2 * MS))
    offset = clock.offset()
    assert offset.ahead_ns == 5 * S - MS
    assert MS < offset.error_ns < 12 * MS


@pytest.mark.parametrize("seed", range(20))
def test_the_truth_lies_within_the_bound_all_the_time(seed: int) -> None:
    """Clocks that drift, ways of different length there and back, and answers that come late."""
    rng = Random(seed)
    ahead_ns, drift = rng.randrange(-(10**15), 10**15), rng.uniform(-400e-6, 400e-6)
    clock, now_ns, truths = NodeClock(), 0, []
    while now_ns < 120 * S:
        there, back = (int(rng.expovariate(1 / (3 * MS))) + 1 for _ in range(2))
        read_at = now_ns + there
        truth = ahead_ns + int(read_at * drift)
        truths.append(truth)
        clock.add(ClockReading(now_ns, read_at + truth, read_at + back))
        now_ns += rng.randrange(S, KEPT_EVERY_NS)
    offset = clock.offset()
    assert all(abs(truth - offset.ahead_ns) <= offset.error_ns for truth in truths)


def test_late_answers_do_not_spoil_what_a_quick_one_showed() -> None:
    clock = NodeClock()
    for round_trip_ns in (400 * MS, 2 * MS, 900 * MS):
        clock.add(ClockReading(S, S + round_trip_ns, S + round_trip_ns))
    assert clock.offset().error_ns < 12 * MS
