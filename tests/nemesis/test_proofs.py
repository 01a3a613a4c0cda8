"""Proofs over several windows of one fault."""

from nemesis.cluster import Beacons
from nemesis.proofs import AS_ORDERED, INDETERMINATE, NOT_AS_ORDERED, links_proof


def test_windows_of_one_fault_add_up_until_they_prove_silence():
    nodes, cut = ("a", "b"), {("a", "b")}
    window = {("a", "b"): Beacons(20, 0), ("b", "a"): Beacons(20, 20)}
    first = links_proof(cut, nodes, window)
    second = links_proof(cut, nodes, window, earlier=first)
    third = links_proof(cut, nodes, window, earlier=second)
    assert [p.verdict for p in (first, second, third)] == [INDETERMINATE, INDETERMINATE, AS_ORDERED]
    assert third.links["a>b"] == (60, 0)


def test_a_beacon_that_arrived_in_any_window_belies_the_cut():
    nodes, cut = ("a", "b"), {("a", "b")}
    leaky = links_proof(cut, nodes, {("a", "b"): Beacons(20, 1), ("b", "a"): Beacons(20, 20)})
    later = links_proof(cut, nodes, {("a", "b"): Beacons(90, 0), ("b", "a"): Beacons(90, 90)}, earlier=leaky)
    assert later.verdict == NOT_AS_ORDERED
