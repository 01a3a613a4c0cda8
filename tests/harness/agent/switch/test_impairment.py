"""What a lane does to frames, and that a switch does it to real frames on the links that were named."""

from __future__ import annotations

import struct
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.agent.frame_switch import (
    QUEUE_S_MAX,
    FrameImpairment,
    ImpairedLink,
    corrupted,
)

FRAME = bytes(10) + bytes(range(60))


def arrivals(impairment: FrameImpairment, frames: int, gap_s: float = 0.001) -> list[tuple[float, int]]:
    """(due, number) of every departure of numbered frames, in the order in which they leave."""
    lane = ImpairedLink(impairment, "seed")
    sent = [(lane.admit(FRAME + struct.pack("!I", n), n * gap_s), n) for n in range(frames)]
    return sorted((departure.due_s, n) for departures, n in sent for departure in departures)


def test_a_share_of_the_frames_is_lost_and_a_share_comes_twice() -> None:
    assert len(arrivals(FrameImpairment(loss=0.3), 2000)) == pytest.approx(1400, rel=0.1)
    assert len(arrivals(FrameImpairment(duplicate=0.25), 2000)) == pytest.approx(2500, rel=0.1)
    assert arrivals(FrameImpairment(loss=1.0), 50) == []


def test_delay_and_jitter_stay_within_their_limits() -> None:
    delays = [due - n * 0.001 for due, n in arrivals(FrameImpairment(delay_s=0.05, jitter_s=0.02), 500)]
    assert min(delays) >= 0.05
    assert max(delays) <= 0.07 + 1e-9
    assert max(delays) - min(delays) > 0.015


def test_reordered_frames_overtake_delayed_ones() -> None:
    order = [n for _, n in arrivals(FrameImpairment(delay_s=0.05, reorder=0.2), 500)]
    assert sorted(order) == list(range(500))
    assert sum(a > b for a, b in pairwise(order)) > 20
    assert [n for _, n in arrivals(FrameImpairment(delay_s=0.05), 500)] == list(range(500))


def test_a_rate_spaces_frames_and_loses_what_would_wait_too_long() -> None:
    rate = 10_000.0
    due = [when for when, _ in arrivals(FrameImpairment(rate_bytes_per_s=rate), 1000, gap_s=0.0)]
    gaps = {round(b - a, 6) for a, b in pairwise(due)}
    assert gaps == {round((len(FRAME) + 4) / rate, 6)}
    assert due[-1] <= QUEUE_S_MAX
    assert len(due) < 1000


def test_equal_seeds_give_equal_fates() -> None:
    impairment = FrameImpairment(loss=0.2, duplicate=0.2, corrupt=0.2, delay_s=0.01, jitter_s=0.01)
    assert arrivals(impairment, 200) == arrivals(impairment, 200)


@pytest.mark.parametrize("wrong", [{"loss": 1.5}, {"delay_s": -1}, {"reorder": 0.1}, {"lost": 0.1}, {"loss": "nan"}])
def test_an_impairment_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises((ValueError, TypeError)):
        FrameImpairment(**wrong)


def internet_sum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@given(payload=st.binary(min_size=1, max_size=200), seed=st.integers(0, 1000))
def test_a_receiver_notices_every_corruption_of_a_datagram(payload: bytes, seed: int) -> None:
    """A UDP datagram whose checksum the kernel left to the card: the field holds the sum of the pseudo header."""
    udp = struct.pack("!HHHH", 1000, 2000, 8 + len(payload), 0) + payload
    pseudo = bytes([10, 0, 0, 1, 10, 0, 0, 2, 0, 17]) + struct.pack("!H", len(udp))
    udp = udp[:6] + struct.pack("!H", internet_sum(pseudo)) + udp[8:]
    start = 14 + 20
    frame = struct.pack("<BBHHHH", 1, 0, 0, 0, start, 6) + bytes(14) + bytes(20) + udp
    damaged = corrupted(frame, Random(seed))
    assert damaged is not None
    assert damaged[:10] == bytes(10)
    received = damaged[10 + start :]
    assert internet_sum(pseudo + received) != 0xFFFF
    assert sum((a ^ b).bit_count() for a, b in zip(received[8:], udp[8:], strict=True)) <= 1


def test_a_large_segment_without_a_checksum_is_dropped() -> None:
    assert corrupted(struct.pack("<BBHHHH", 1, 1, 54, 1448, 34, 16) + bytes(3000), Random(1)) is None
