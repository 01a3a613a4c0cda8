"""The network of nodes: the switch, which carries, answers, rejects and impairs; and beacons over loopback."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from own_address import HOST, free_ports
from waiting import PATIENCE_S, until

from harness.agent import frame_switch
from harness.agent.network import REMEMBERED, BeaconVerbs
from harness.backends.agent_cluster import addresses
from harness.backends.warden import SUBNET, PlannedNode, WardenPlan, mac_of, node_side, switch_side

NODES = ("n1", "n2", "n3")
MACS = {name: bytes.fromhex(mac_of(place).replace(":", "")) for place, name in enumerate(NODES)}


class Wired:
    """A switch in a thread; `far` holds the nodes' ends."""

    def __init__(self) -> None:
        self.far: dict[str, socket.socket] = {}
        ports = []
        for name in NODES:
            near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            near.setblocking(False)
            far.settimeout(PATIENCE_S)
            self.far[name] = far
            ports.append(frame_switch.Port(name, MACS[name], near))
        self.control, theirs = socket.socketpair()
        self.control.settimeout(PATIENCE_S)
        self.thread = threading.Thread(target=frame_switch.Switch(ports, theirs).serve, daemon=True)
        self.thread.start()

    def cut(self, *links: tuple[str, str]) -> dict[str, int]:
        self.control.sendall(json.dumps({"cut": links}).encode() + b"\n")
        return json.loads(self.control.recv(1000))

    def impair(self, *rows: list[Any]) -> None:
        self.control.sendall(json.dumps({"impair": rows, "seed": 1}).encode() + b"\n")
        assert b"forwarded" in self.control.recv(1000)

    def hears(self, source: str, to: str, mac: bytes | None = None) -> bool:
        frame = bytes(10) + (mac or MACS[to]) + MACS[source] + b"\x08\x00" + f"{source}>{to}".encode()
        self.far[source].send(frame)
        return self.far[to].recv(1000) == frame

    def is_deaf(self, source: str, to: str, mac: bytes | None = None) -> bool:
        """Whether a frame is dropped: a later frame of the same source has passed, and this one has not."""
        self.far[source].send(bytes(10) + (mac or MACS[to]) + MACS[source] + b"\x08\x00" + b"lost")
        assert self.hears(source, next(name for name in NODES if name not in (source, to)))
        return not select.select([self.far[to]], [], [], 0)[0]


@pytest.fixture
def wired():
    wired = Wired()
    yield wired
    wired.control.close()
    wired.thread.join(PATIENCE_S)
    assert not wired.thread.is_alive(), "the switch ends when its control stream ends"


def test_frames_pass_untouched_until_a_directed_link_is_cut_and_again_after_the_heal(wired):
    assert wired.hears("n1", "n2") and wired.hears("n2", "n1")
    assert wired.cut(("n1", "n2"))["forwarded"] == 2
    assert wired.is_deaf("n1", "n2")
    assert wired.hears("n2", "n1") and wired.hears("n1", "n3") and wired.hears("n3", "n2")
    wired.cut(("n3", "n1"), ("n1", "n3"))
    assert wired.hears("n1", "n2"), "a cut replaces the one before"
    assert wired.is_deaf("n3", "n1") and wired.is_deaf("n1", "n3")
    wired.cut()
    assert all(wired.hears(a, b) for a in NODES for b in NODES if a != b)


@pytest.mark.parametrize("mac", [b"\xff" * 6, bytes.fromhex("01005e010203"), bytes.fromhex("333300000001")])
def test_a_frame_to_all_reaches_every_node_but_over_a_cut_link(wired, mac: bytes):
    frame = bytes(10) + mac + MACS["n1"] + b"\x88\xb5" + b"to all"
    for hearing in (("n2", "n3"), ("n3",)):
        wired.cut(*(("n1", node) for node in ("n2", "n3") if node not in hearing))
        wired.far["n1"].send(frame)
        assert all(wired.far[node].recv(1000) == frame for node in hearing)
    assert wired.is_deaf("n1", "n2")


@pytest.mark.parametrize(("kind", "passes"), [(135, True), (136, True), (128, False)])
def test_neighbour_discovery_of_ipv6_passes_a_cut_link(wired, kind: int, passes: bool):
    packet = b"\x60" + bytes(5) + bytes([58, 255]) + bytes(32) + bytes([kind]) + bytes(23)
    wired.cut(("n1", "n2"))
    frame = bytes(10) + MACS["n2"] + MACS["n1"] + b"\x86\xdd" + packet
    wired.far["n1"].send(frame)
    assert not passes or wired.far["n2"].recv(1000) == frame
    assert wired.is_deaf("n1", "n2")


def test_frames_to_an_unknown_node_or_to_oneself_are_dropped(wired):
    assert wired.is_deaf("n1", "n2", mac=b"\x02\x00\x00\x00\x00\x63")
    assert wired.is_deaf("n1", "n1")


def test_two_orders_in_one_piece_and_one_in_two_pieces_are_all_obeyed(wired):
    wired.control.sendall(b'{"cut": []}\n{"cut": [["n1", ')
    assert b"forwarded" in wired.control.recv(1000)
    assert wired.hears("n1", "n2")
    wired.control.sendall(b'"n2"]]}\n')
    assert b"forwarded" in wired.control.recv(1000)
    assert wired.is_deaf("n1", "n2")


def test_a_plan_gives_every_node_an_address_of_the_benchmarking_range_and_knows_all_neighbours():
    placed = addresses(SUBNET, ["n1", "n2"], ["c1"])
    assert placed == {"n1": "198.18.0.11", "n2": "198.18.0.12", "c1": "198.18.0.101"}
    nodes = tuple(
        PlannedNode(name, address, mac_of(place), f"port{place}", f"/x/{name}")
        for place, (name, address) in enumerate(placed.items())
    )
    plan = WardenPlan(nodes, "/x/helper")
    batch = node_side(plan, nodes[0])
    assert batch.count("nud permanent") == 2 and f"neighbour add 198.18.0.101 lladdr {nodes[2].mac}" in batch
    assert "peer name eth0 address 02:00:c6:12:00:02 netns 55" in switch_side(plan, [54, 55, 56])
    with pytest.raises(ValueError, match="91 servers and 1 client nodes do not fit"):
        addresses(SUBNET, [f"n{i}" for i in range(91)], ["c1"])


def test_only_the_impaired_link_loses_and_repeats_frames(wired):
    wired.impair(["n1", "n2", {"loss": 1.0}], ["n2", "n3", {"duplicate": 1.0}])
    assert wired.is_deaf("n1", "n2")
    assert wired.hears("n2", "n1")
    assert wired.hears("n2", "n3")
    assert wired.far["n3"].recv(1000).endswith(b"n2>n3"), "the second of the two"
    wired.impair()
    assert wired.hears("n1", "n2")


def test_a_delayed_frame_arrives_later_and_whole(wired):
    wired.impair(["n1", "n2", {"delay_s": 0.05}])
    began = time.monotonic()
    assert wired.hears("n1", "n2")
    assert time.monotonic() - began >= 0.05


def test_an_order_that_makes_no_sense_changes_nothing(wired):
    wired.control.sendall(b'{"impair": [["n1", "n2", {"loss": 7}]], "seed": 1}\n{"cut": [["n1"]]}\n')
    answers = b""
    while answers.count(b"\n") < 2:
        answers += wired.control.recv(1000)
    assert answers.count(b"refused") == 2
    assert wired.hears("n1", "n2")


def test_held_frames_are_played_back_in_order_when_the_link_is_held_no_more(wired):
    wired.impair(["n1", "n2", {"hold": 1}])
    frames = [bytes(10) + MACS["n2"] + MACS["n1"] + b"\x08\x00" + bytes([number]) for number in range(5)]
    for frame in frames:
        wired.far["n1"].send(frame)
    assert wired.is_deaf("n1", "n2"), "held, as one more frame"
    assert wired.hears("n2", "n1"), "the other direction is whole"
    wired.impair(["n1", "n2", {"hold": 1}], ["n3", "n2", {"hold": 1}])
    assert wired.is_deaf("n3", "n2") and wired.is_deaf("n1", "n2"), "an order that still holds it plays nothing back"
    wired.impair()
    assert [wired.far["n2"].recv(1000) for _ in frames] == frames


A, B = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
IP_A, IP_B = bytes([198, 18, 0, 1]), bytes([198, 18, 0, 2])
MACS_OF_ADDRESSES = {IP_A: A, IP_B: B}
REQUEST, REPLY = 1, 2


def frame(wanted: bytes, operation: int = REQUEST, protocol: int = 0x0800, kind: bytes = b"\x08\x06") -> bytes:
    packet = struct.pack("!HHBBH", 1, protocol, 6, 4, operation) + A + IP_A + bytes(6) + wanted
    return bytes(10) + b"\xff" * 6 + A + kind + packet + bytes(18)  # Ethernet pads short frames


def test_a_request_is_answered_as_the_node_would() -> None:
    reply = frame_switch.reply_for(frame(IP_B), MACS_OF_ADDRESSES)
    assert reply is not None
    assert reply[10:24] == A + B + b"\x08\x06"
    assert reply[24:] == struct.pack("!HHBBH", 1, 0x0800, 6, 4, REPLY) + B + IP_B + A + IP_A


SYN, RST, ACK = 2, 4, 16


def segment_frame(
    flags: int, payload: bytes = b"", sequence: int = 1000, acknowledged: int = 0, protocol: int = 6
) -> bytes:
    tcp = struct.pack("!HHIIBBHHH", 40000, 7100, sequence, acknowledged, 5 << 4, flags, 100, 0, 0) + payload
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 7, 0, 64, protocol, 0) + IP_A + IP_B
    return bytes(10) + B + A + b"\x08\x00" + ip + tcp


def internet_sum(data: bytes) -> int:
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@pytest.mark.parametrize(
    ("sent", "sequence", "acknowledged", "flags"),
    [
        (segment_frame(SYN), 0, 1001, RST | ACK),
        (segment_frame(0, b"abc"), 0, 1003, RST | ACK),
        (segment_frame(SYN, sequence=0xFFFFFFFF), 0, 0, RST | ACK),
        (segment_frame(ACK, b"abc", acknowledged=777), 777, 0, RST),
    ],
)
def test_a_segment_is_answered_by_the_reset_its_sender_accepts(
    sent: bytes, sequence: int, acknowledged: int, flags: int
) -> None:
    reset = frame_switch.reset_for(sent)
    assert reset is not None
    assert reset[10:22] == A + B, "back to the sender"
    ip, tcp = reset[24:44], reset[44:]
    assert (ip[12:16], ip[16:20]) == (IP_B, IP_A)
    assert struct.unpack("!HHIIBB", tcp[:14]) == (7100, 40000, sequence, acknowledged, 5 << 4, flags)
    assert internet_sum(ip) == internet_sum(IP_B + IP_A + struct.pack("!BBH", 0, 6, len(tcp)) + tcp) == 0xFFFF


UNANSWERED = (
    frame(bytes([198, 18, 0, 9])),
    frame(IP_A),
    frame(IP_B, operation=REPLY),
    frame(IP_B, protocol=0x86DD),
    frame(IP_B, kind=b"\x08\x00"),
    frame(IP_B)[:40],
    segment_frame(RST),
    segment_frame(SYN, protocol=17),
    segment_frame(SYN)[:40],
    segment_frame(SYN)[:22] + b"\x86\xdd" + bytes(60),
    bytes(24),
    b"",
)


@pytest.mark.parametrize("sent", UNANSWERED)
def test_what_is_neither_a_request_for_another_node_nor_a_segment_is_not_answered(sent: bytes) -> None:
    assert frame_switch.reply_for(sent, MACS_OF_ADDRESSES) is frame_switch.reset_for(sent) is None


FRAME = bytes(10) + bytes(range(60))


def arrivals(impairment: frame_switch.FrameImpairment, frames: int, gap_s: float = 0.001) -> list[tuple[float, int]]:
    """(due, number) of every departure of numbered frames, in the order in which they leave."""
    lane = frame_switch.ImpairedLink(impairment, "seed")
    sent = [(lane.admit(FRAME + struct.pack("!I", n), n * gap_s), n) for n in range(frames)]
    return sorted((due_s, n) for departures, n in sent for due_s, _ in departures)


def test_a_share_of_the_frames_is_lost_and_a_share_comes_twice() -> None:
    assert len(arrivals(frame_switch.FrameImpairment(loss=0.3), 2000)) == pytest.approx(1400, rel=0.1)
    assert len(arrivals(frame_switch.FrameImpairment(duplicate=0.25), 2000)) == pytest.approx(2500, rel=0.1)
    assert arrivals(frame_switch.FrameImpairment(loss=1.0), 50) == []


def test_delay_and_jitter_stay_within_their_limits() -> None:
    delays = [due - n * 0.001 for due, n in arrivals(frame_switch.FrameImpairment(delay_s=0.05, jitter_s=0.02), 500)]
    assert min(delays) >= 0.05
    assert max(delays) <= 0.07 + 1e-9
    assert max(delays) - min(delays) > 0.015


def test_reordered_frames_overtake_delayed_ones() -> None:
    order = [n for _, n in arrivals(frame_switch.FrameImpairment(delay_s=0.05, reorder=0.2), 500)]
    assert sorted(order) == list(range(500))
    assert sum(a > b for a, b in pairwise(order)) > 20
    assert [n for _, n in arrivals(frame_switch.FrameImpairment(delay_s=0.05), 500)] == list(range(500))


def test_a_rate_spaces_frames_and_loses_what_would_wait_too_long() -> None:
    rate = 10_000.0
    due = [when for when, _ in arrivals(frame_switch.FrameImpairment(rate_bytes_per_s=rate), 1000, gap_s=0.0)]
    gaps = {round(b - a, 6) for a, b in pairwise(due)}
    assert gaps == {round((len(FRAME) + 4) / rate, 6)}
    assert due[-1] <= frame_switch.QUEUE_S_MAX
    assert len(due) < 1000


def test_equal_seeds_give_equal_fates() -> None:
    impairment = frame_switch.FrameImpairment(loss=0.2, duplicate=0.2, corrupt=0.2, delay_s=0.01, jitter_s=0.01)
    assert arrivals(impairment, 200) == arrivals(impairment, 200)


@pytest.mark.parametrize("wrong", [{"loss": 1.5}, {"delay_s": -1}, {"reorder": 0.1}, {"lost": 0.1}, {"loss": "nan"}])
def test_an_impairment_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises((ValueError, TypeError)):
        frame_switch.FrameImpairment(**wrong)


@given(payload=st.binary(min_size=1, max_size=200), seed=st.integers(0, 1000))
def test_a_receiver_notices_every_corruption_of_a_datagram(payload: bytes, seed: int) -> None:
    """A UDP datagram whose checksum the kernel left to the card: the field holds the sum of the pseudo header."""
    udp = struct.pack("!HHHH", 1000, 2000, 8 + len(payload), 0) + payload
    pseudo = bytes([10, 0, 0, 1, 10, 0, 0, 2, 0, 17]) + struct.pack("!H", len(udp))
    udp = udp[:6] + struct.pack("!H", internet_sum(pseudo)) + udp[8:]
    start = 14 + 20
    frame = struct.pack("<BBHHHH", 1, 0, 0, 0, start, 6) + bytes(14) + bytes(20) + udp
    damaged = frame_switch.corrupted(frame, Random(seed))
    assert damaged is not None
    assert damaged[:10] == bytes(10)
    received = damaged[10 + start :]
    assert internet_sum(pseudo + received) != 0xFFFF
    assert sum((a ^ b).bit_count() for a, b in zip(received[8:], udp[8:], strict=True)) <= 1


def test_a_large_segment_without_a_checksum_is_dropped() -> None:
    assert frame_switch.corrupted(struct.pack("<BBHHHH", 1, 1, 54, 1448, 34, 16) + bytes(3000), Random(1)) is None


TOKEN = b"testtest"
ADDRESSES = {"a": HOST, "b": HOST.removesuffix("77") + "78"}


@pytest.fixture
def port() -> int:
    return free_ports(1, socket.SOCK_DGRAM)[0]


def beacons(name: str, port: int, token: bytes = TOKEN, interval_ms: float = 2.0) -> BeaconVerbs:
    peers = {peer: address for peer, address in ADDRESSES.items() if peer != name}
    started = BeaconVerbs()
    started.start(token, ADDRESSES[name], port, peers, interval_ms)
    return started


@pytest.fixture
def pair(port: int) -> Iterator[tuple[BeaconVerbs, BeaconVerbs]]:
    both = a, b = beacons("a", port), beacons("b", port)
    try:
        a_to_b = a.mark()["b"]
        until(lambda: heard(b, "a", a_to_b, a.mark()["b"]))  # beacons sent before b was bound are lost
        yield both
    finally:
        for one in both:
            one.stop()


def heard(receiver: BeaconVerbs, source: str, first: int, last: int) -> bool:
    return receiver.count({source: (first, last)})[source] > 0


def test_all_of_an_open_link_arrive(pair: tuple[BeaconVerbs, BeaconVerbs]) -> None:
    a, b = pair
    first = a.mark()["b"]
    until(lambda: a.mark()["b"] >= first + 50)
    last = a.mark()["b"]
    until(lambda: b.count({"a": (first, last)}) == {"a": last - first})


def test_nothing_counts_that_was_sent_outside_the_window(pair: tuple[BeaconVerbs, BeaconVerbs]) -> None:
    a, b = pair
    first = a.mark()["b"]
    until(lambda: a.mark()["b"] >= first + 20)
    until(lambda: b.count({"a": (first, first + 20)}) == {"a": 20})
    assert b.count({"a": (first + 5, first + 15)}) == {"a": 10}
    assert b.count({"a": (first, first)}) == {"a": 0}


def test_another_runs_datagrams_do_not_count(port: int) -> None:
    a, b = beacons("a", port), beacons("b", port, token=b"otherrun")
    try:
        until(lambda: a.mark()["b"] > 20)
        assert b.count({"a": (0, a.mark()["b"])}) == {"a": 0}
    finally:
        a.stop()
        b.stop()


def test_a_datagram_that_arrives_twice_counts_once(port: int) -> None:
    b = beacons("b", port)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger:
            forger.bind((ADDRESSES["a"], port))
            for number in (1, 2, 2, 2, 5):
                forger.sendto(TOKEN + number.to_bytes(8, "big"), (ADDRESSES["b"], port))
            until(lambda: b.count({"a": (4, 5)}) == {"a": 1})
            assert b.count({"a": (0, 10)}) == {"a": 3}
    finally:
        b.stop()


def test_what_the_kernel_refuses_was_not_sent(port: int) -> None:
    """A broadcast address refuses with EACCES; a link without a datagram sent can prove nothing."""
    a = BeaconVerbs()
    a.start(TOKEN, HOST, port, {"b": "255.255.255.255", "c": ADDRESSES["b"]}, 2.0)
    try:
        until(lambda: a.mark()["c"] > 10)
        assert a.mark()["b"] == 0
    finally:
        a.stop()


def test_a_new_interval_takes_effect_at_once(port: int) -> None:
    a = beacons("a", port, interval_ms=1_000_000.0)
    try:
        until(lambda: a.mark()["b"] == 1)
        a.set_interval(2.0)
        until(lambda: a.mark()["b"] > 20)
    finally:
        a.stop()


def test_a_window_longer_than_memory_is_refused(pair: tuple[BeaconVerbs, BeaconVerbs]) -> None:
    with pytest.raises(ValueError, match="a window has 0 to"):
        pair[1].count({"a": (0, REMEMBERED + 1)})
