"""Beacons over loopback: what was sent, what arrived, and how evenly they go out while others compute."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from own_address import HOST, free_ports
from waiting import until

from harness.agent.network import REMEMBERED, BeaconVerbs

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
    with pytest.raises(ValueError, match="a window holds 0 to"):
        pair[1].count({"a": (0, REMEMBERED + 1)})
