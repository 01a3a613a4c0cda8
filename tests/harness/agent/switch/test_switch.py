"""The switch and its plan, without any right to make namespaces: ports are datagram socket pairs here."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest
from waiting import PATIENCE_S

from harness.agent.frame_switch import Port, Switch
from harness.backends.agent_cluster import addresses
from harness.backends.namespaces.warden import (
    SUBNET,
    PlannedNode,
    WardenPlan,
    mac_of,
    node_side,
    switch_side,
)

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
            self.far[name] = far
            ports.append(Port(name, MACS[name], near))
        self.control, theirs = socket.socketpair()
        self.control.settimeout(PATIENCE_S)
        self.thread = threading.Thread(target=Switch(ports, theirs).serve, daemon=True)
        self.thread.start()

    def cut(self, *links: tuple[str, str]) -> dict[str, int]:
        self.control.sendall(json.dumps({"cut": links}).encode() + b"\n")
        return json.loads(self.control.recv(1000))

    def hears(self, source: str, to: str, mac: bytes | None = None) -> bool:
        frame = bytes(10) + (mac or MACS[to]) + MACS[source] + b"\x08\x00" + f"{source}>{to}".encode()
        self.far[source].send(frame)
        self.far[to].settimeout(PATIENCE_S)
        return self.far[to].recv(1000) == frame

    def is_deaf(self, source: str, to: str, mac: bytes | None = None) -> bool:
        """Whether a frame is dropped: a later frame of the same source has passed, and this one has not."""
        self.far[source].send(bytes(10) + (mac or MACS[to]) + MACS[source] + b"\x08\x00" + b"lost")
        assert self.hears(source, next(name for name in NODES if name not in (source, to)))
        self.far[to].setblocking(False)
        try:
            self.far[to].recv(1000)
        except BlockingIOError:
            return True
        return False


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
        for node in hearing:
            wired.far[node].settimeout(PATIENCE_S)
            assert wired.far[node].recv(1000) == frame
    assert wired.is_deaf("n1", "n2")


@pytest.mark.parametrize(("kind", "passes"), [(135, True), (136, True), (128, False)])
def test_neighbour_discovery_of_ipv6_passes_a_cut_link(wired, kind: int, passes: bool):
    packet = b"\x60" + bytes(5) + bytes([58, 255]) + bytes(32) + bytes([kind]) + bytes(23)
    wired.cut(("n1", "n2"))
    frame = bytes(10) + MACS["n2"] + MACS["n1"] + b"\x86\xdd" + packet
    wired.far["n1"].send(frame)
    if passes:
        wired.far["n2"].settimeout(PATIENCE_S)
        assert wired.far["n2"].recv(1000) == frame
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
    assert WardenPlan.from_json(plan.to_json()) == plan
    batch = node_side(plan, nodes[0])
    assert batch.count("nud permanent") == 2 and f"neighbour add 198.18.0.101 lladdr {nodes[2].mac}" in batch
    assert "peer name eth0 address 02:00:c6:12:00:02 netns 55" in switch_side(plan, [54, 55, 56])
    with pytest.raises(ValueError, match="91 servers and 1 client nodes do not fit"):
        addresses(SUBNET, [f"n{i}" for i in range(91)], ["c1"])


def test_only_the_impaired_link_loses_and_repeats_frames(wired):
    order = {"impair": [["n1", "n2", {"loss": 1.0}], ["n2", "n3", {"duplicate": 1.0}]], "seed": 1}
    wired.control.sendall(json.dumps(order).encode() + b"\n")
    assert b"forwarded" in wired.control.recv(1000)
    assert wired.is_deaf("n1", "n2")
    assert wired.hears("n2", "n1")
    assert wired.hears("n2", "n3")
    assert wired.far["n3"].recv(1000).endswith(b"n2>n3"), "the second of the two"
    wired.control.sendall(b'{"impair": [], "seed": 1}\n')
    assert b"forwarded" in wired.control.recv(1000)
    assert wired.hears("n1", "n2")


def test_a_delayed_frame_arrives_later_and_whole(wired):
    wired.control.sendall(b'{"impair": [["n1", "n2", {"delay_s": 0.05}]], "seed": 1}\n')
    wired.control.recv(1000)
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
    def order(*held: tuple[str, str]) -> None:
        rows = [[a, b, {"hold": 1}] for a, b in held]
        wired.control.sendall(json.dumps({"impair": rows, "seed": 1}).encode() + b"\n")
        assert b"forwarded" in wired.control.recv(1000)

    order(("n1", "n2"))
    frames = [bytes(10) + MACS["n2"] + MACS["n1"] + b"\x08\x00" + bytes([number]) for number in range(5)]
    for frame in frames:
        wired.far["n1"].send(frame)
    assert wired.is_deaf("n1", "n2"), "held, as one more frame"
    assert wired.hears("n2", "n1"), "the other direction is whole"
    order(("n1", "n2"), ("n3", "n2"))
    assert wired.is_deaf("n3", "n2") and wired.is_deaf("n1", "n2"), "an order that still holds it plays nothing back"
    order()
    wired.far["n2"].settimeout(PATIENCE_S)
    assert [wired.far["n2"].recv(1000) for _ in frames] == frames
