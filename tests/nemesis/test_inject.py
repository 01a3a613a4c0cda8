"""A schedule on a cluster that obeys, and on clusters that lie, fall silent or refuse.

A schedule that is cancelled, fails or ends early leaves nothing broken.  Faults may overlap on the same links.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any

import pytest
from dealt import deal
from fake_nemesis_cluster import FakeCluster, card, played, played_while, timeless
from virtual_time import run as in_no_time

from checkers.record.faults import Achieved, Card, Condition, Fault, FaultRecord, Ordered, Proof
from checkers.record.files import as_json
from nemesis.cluster import CLOCK, Link
from nemesis.measure import (
    AS_ORDERED,
    IMPAIRED_WAIT_S,
    INDETERMINATE,
    NOT_AS_ORDERED,
    FaultRecords,
    Field,
    Hooks,
    Meter,
)
from nemesis.play import HEAL_HIDDEN_LIMIT_S, _until_as_ordered, heal_all

LEADER_LINKS = {link for s in ("n2", "n3", "n4", "n5") for link in (("n1", s), (s, "n1"))}


def test_a_partition_is_cut_proven_held_copied_healed_and_proven_again():
    cluster = FakeCluster()
    (record,), witness = in_no_time(played(cluster, card()))
    assert (record.achieved, record.reason) == (Achieved.INSTALLED, "")
    assert (record.leader, record.epoch) == ("n1", 3)
    assert set(record.cut) == LEADER_LINKS
    assert record.inject_proof.links["n1>n2"] == (150, 0)
    assert record.inject_proof.links["c1>n1"] == (150, 150)
    assert record.heal_proof.links["n1>n2"] == (150, 150)
    assert record.injected_ns == pytest.approx(2e9)
    assert record.heal_ordered_ns == pytest.approx(12e9)
    assert witness.in_force_before_heal == [True]
    assert cluster.whole
    assert json.loads(json.dumps(as_json(record)))["achieved"] == "installed"
    first, last = witness.delivered[0], witness.delivered[-1]  # the first while the fault is still being worked on
    assert first.achieved is Achieved.INDETERMINATE and first.cut and first.injected_ns == -1
    assert last.achieved is Achieved.INSTALLED and last.healed_ns > 0


@pytest.mark.parametrize(
    ("kind", "name", "count", "state"),
    [
        ("pause", "leader", 1, "stopped"),
        ("pause", "minority", 2, "stopped"),
        ("kill", "majority", 3, "dead"),
        ("kill", "all", 5, "dead"),
    ],
)
def test_processes_are_paused_or_killed_proven_and_brought_back(kind, name, count, state):
    cluster = FakeCluster()
    (record,), witness = in_no_time(played(cluster, card(kind, name)))
    assert record.achieved is Achieved.INSTALLED
    assert len(record.nodes) == count and set(record.nodes) <= set(cluster.servers)
    assert sum(s == state for s in record.inject_proof.states.values()) == count
    assert set(record.heal_proof.states.values()) == {"running"}
    assert witness.in_force_before_heal == [True]
    assert cluster.whole


@pytest.mark.parametrize("nemesis", ["partition", "pause", "kill"])
def test_one_seed_plays_one_and_the_same_run(nemesis):
    def run(seed):
        cluster = FakeCluster()
        records, _ = in_no_time(played(cluster, *deal(nemesis, cluster.servers, 90.0, Random(seed)), seed=seed))
        return [timeless(r) for r in records]

    assert run(5) == run(5)
    assert run(5) != run(6)
    assert {r.achieved for r in run(5) if not r.card.moment} == {Achieved.INSTALLED}


@pytest.mark.parametrize(
    ("lie", "dealt", "achieved", "reason"),
    [
        ({"leaks": {("n1", "n4")}}, card(), Achieved.NOT_ACHIEVED, "n1>n4 ordered cut: 150 of 150 beacons arrived"),
        (
            {"stuck": frozenset({("n2", "n3")}), "silent": frozenset({("n2", "n3")})},
            card(),
            Achieved.NOT_ACHIEVED,
            "n2>n3 ordered open: none of 150 beacons arrived",
        ),
        ({"stuck": {("n5", "n1")}}, card(), Achieved.NOT_ACHIEVED, "after heal: n5>n1 ordered open: none of"),
        ({"share_sent": 9 / 150}, card(), Achieved.INDETERMINATE, "n1>n2 ordered cut: not proven for"),
        ({"unreported": {("c2", "n3")}}, card(), Achieved.INDETERMINATE, "c2>n3 ordered open: no beacons were"),
        ({"immortal": {"n1"}}, card("kill", "leader"), Achieved.NOT_ACHIEVED, "n1 ordered dead: it is running"),
    ],
)
def test_a_cluster_that_lies_is_found_out(lie, dealt, achieved, reason):
    (record,), _ = in_no_time(played(FakeCluster(**lie), dealt))
    assert record.achieved is achieved
    assert reason in record.reason


def test_a_starved_sender_gets_another_window():
    (record,), _ = in_no_time(played(FakeCluster(starved_until_s=2.5), card()))
    assert record.achieved is Achieved.INSTALLED


def test_without_a_leader_the_card_waits_five_seconds_and_is_skipped():
    records, _ = in_no_time(played(FakeCluster(leader=None), card(), card(name="halves", number=2, at_s=20.0)))
    assert [r.achieved for r in records] == [Achieved.SKIPPED, Achieved.INSTALLED]
    assert records[0].reason == "no node led within 5 s"
    assert records[0].injected_ns == -1


def test_a_leader_elected_meanwhile_is_the_one_that_is_hit():
    cluster = FakeCluster(leader=None)
    (record,) = played_while(cluster, card(), acts={5.0: lambda: vars(cluster).update(leader="n4", epoch=8)})
    assert (record.achieved, record.leader, record.epoch) == (Achieved.INSTALLED, "n4", 8)
    assert record.injected_ns == pytest.approx(5e9, abs=0.3e9)


def test_what_the_backend_cannot_do_is_skipped_in_its_own_words_and_undone():
    cluster = FakeCluster(cannot={"kill": "this backend has no processes"})
    cluster.missing = {CLOCK: "no clocks here: choose BACKEND=docker"}
    records, _ = in_no_time(played(cluster, card("kill", "minority"), card("clock", "one", 2, 20.0)))
    assert [(record.achieved, record.reason) for record in records] == [
        (Achieved.SKIPPED, "this backend has no processes"),
        (Achieved.SKIPPED, "no clocks here: choose BACKEND=docker"),
    ]
    assert cluster.whole


def test_a_silent_agent_makes_the_fault_not_achieved_and_the_rest_goes_on():
    records, _ = in_no_time(played(FakeCluster(gone={"n3"}), card(), card("pause", "one", 2, 30.0)))
    assert records[0].achieved is Achieved.NOT_ACHIEVED
    assert records[0].reason == "the order failed: the agent of n3 does not answer"
    assert records[1].achieved is Achieved.INSTALLED


def test_a_leader_dies_at_a_write_and_one_that_writes_nothing_lives_on():
    cluster = FakeCluster()
    (record,), _ = in_no_time(played(cluster, card("kill", "leader-at-write")))
    assert (record.achieved, record.nodes) == (Achieved.INSTALLED, ("n1",))
    assert "kill at write n1" in cluster.orders and cluster.whole
    cluster = FakeCluster(idle={"n1"})
    (record,), _ = in_no_time(played(cluster, card("kill", "leader-at-write")))
    assert (record.achieved, record.reason) == (Achieved.SKIPPED, "n1 wrote nothing for 2 s")
    assert not any(order.startswith("kill") for order in cluster.orders)


class WrongClocks(FakeCluster):
    """Clocks are set as ordered."""

    def __init__(self):
        super().__init__()
        self.ahead_s = dict.fromkeys(self.servers, 0.0)

    async def set_clock(self, server, offset_s, rate):
        self.ahead_s[server] = offset_s

    async def read_clock(self, server):
        return {"ahead_s": self.ahead_s[server], "age_s": 0.0, "heeded": self.states[server] == "running"}


def test_a_leader_whose_clock_is_wrong_is_cut_off_and_not_killed():
    wrong = card("clock", "leader-behind", 1, 2.0, 10.0)
    records, _ = in_no_time(played(WrongClocks(), wrong, card("partition", "isolate-leader", 2, 4.0, 7.0)))
    assert [(r.achieved, r.leader) for r in records] == [(Achieved.INSTALLED, "n1")] * 2
    records, _ = in_no_time(played(WrongClocks(), wrong, card("kill", "one", 2, 4.0, 7.0)))
    assert [r.achieved for r in records] == [Achieved.INSTALLED] * 2
    assert records[1].nodes != ("n1",), "a dead server reads no clock"
    records, _ = in_no_time(played(WrongClocks(), wrong, card("kill", "leader", 2, 4.0, 3.0)))
    assert records[1].reason == "no node led within 5 s"


def test_half_a_kill_is_taken_back():
    cluster = FakeCluster()
    really = cluster.kill

    async def kill(server):
        await asyncio.sleep(0.001)
        await really(server)

    cluster.kill = kill
    (record,) = played_while(cluster, card("kill", "all"), acts={2.0005: lambda: cluster.gone.add("n5")})
    assert record.achieved is Achieved.NOT_ACHIEVED
    assert [cluster.states[s] for s in ("n1", "n2", "n3", "n4")] == ["running"] * 4


@pytest.mark.parametrize("target", ["leader", "all"])
def test_two_cards_that_are_due_at_once_do_not_both_strike_a_server(target):
    """The second restart would end the first fault; on a loaded machine the answers of the servers come late."""
    cluster = FakeCluster()
    prompt = cluster.statuses

    async def statuses():
        found = await prompt()
        await asyncio.sleep(0.4)
        return found

    cluster.statuses = statuses
    cards = card("kill", target, 1, hold_s=6.0), card("pause", target, 2, hold_s=3.0)
    (killed, paused), _ = in_no_time(played(cluster, *cards))
    struck = ("n1",) if target == "leader" else cluster.servers
    assert (killed.achieved, killed.nodes, killed.reason) == (Achieved.INSTALLED, tuple(struck), "")
    if paused.achieved is Achieved.INSTALLED:
        assert paused.injected_ns > killed.healed_ns
    else:
        assert (paused.achieved, paused.nodes) == (Achieved.SKIPPED, ())


def test_too_few_running_servers_skip_a_card_aimed_at_processes():
    cluster = FakeCluster()
    cluster.states["n1"] = "dead"
    (record,), _ = in_no_time(played(cluster, card("pause", "majority"), seed=1))
    assert record.achieved is Achieved.INSTALLED and "n1" not in record.nodes
    (record,), _ = in_no_time(played(cluster, card("kill", "all")))
    assert record.reason == "only 4 of 5 server processes were running"
    assert cluster.states["n1"] == "dead", "an unexpected death is for the checkers to see"


def test_a_card_that_needs_every_server_waits_for_one_whose_data_is_copied():
    cluster = FakeCluster()
    times = {1.5: "stopped", 2.5: "running"}
    copied = {at_s: partial(cluster.states.update, n1=state) for at_s, state in times.items()}
    (record,) = played_while(cluster, card("kill", "all"), acts=copied)
    assert record.achieved is Achieved.INSTALLED
    assert set(record.nodes) == set(cluster.servers)


def test_a_card_that_needs_every_server_waits_for_the_heal_of_another_fault():
    cluster = FakeCluster()
    paused = card("pause", "minority", 1, 1.0, 6.0)
    records, _ = in_no_time(played(cluster, paused, card("kill", "all", 2, 3.0, 4.0)))
    assert [r.achieved for r in records] == [Achieved.INSTALLED] * 2
    assert set(records[1].nodes) == set(cluster.servers)
    assert records[1].injected_ns > records[0].healed_ns, "it would have undone the pause"


def test_a_card_that_waits_in_vain_says_that_other_faults_held_the_servers():
    cluster = FakeCluster()
    paused = card("pause", "minority", 1, 1.0, 30.0)
    records, _ = in_no_time(played(cluster, paused, card("kill", "all", 2, 3.0, 4.0)))
    assert records[1].achieved is Achieved.SKIPPED
    assert records[1].reason == "only 3 of 5 server processes were running"
    wrong = card("clock", "leader-behind", 1, 1.0, 30.0)
    records, _ = in_no_time(played(WrongClocks(), wrong, card("clock", "all", 2, 3.0, 4.0)))
    assert records[1].reason == ("only 5 of 5 server processes were running, and other faults still held 1 of these")


def test_a_slow_copy_delays_the_heal_by_a_second_at_most_and_is_still_awaited():
    cluster = FakeCluster()
    copied = []

    async def run():
        async def before_heal(record):
            await asyncio.sleep(30.0)
            copied.append(record.card.number)

        hooks = Hooks(record=lambda r: None, before_heal=before_heal)
        return await played(cluster, card(), card(number=2, at_s=50.0), hooks=hooks)

    records, _ = in_no_time(run())
    assert [r.achieved for r in records] == [Achieved.INSTALLED] * 2
    assert records[0].heal_ordered_ns == pytest.approx(13e9, abs=0.1e9)
    assert copied == [1, 2]


@pytest.mark.parametrize("hold_s", [0.2, 0.7, 2.5, 4.0])
@pytest.mark.parametrize("kind", ["partition", "pause"])
def test_no_measurement_and_no_copy_stretches_a_hold(kind, hold_s):
    cluster = FakeCluster()
    cluster.starved_until_s = 100.0 if kind == "pause" else 0.0

    async def run():
        async def before_heal(record):
            await asyncio.sleep(0.8)

        hooks = Hooks(record=lambda r: None, before_heal=before_heal)
        name = "halves" if kind == "partition" else "minority"
        return await played(cluster, card(kind, name, hold_s=hold_s), hooks=hooks)

    (record,), _ = in_no_time(run())
    assert record.heal_ordered_ns - record.injected_ns == pytest.approx(hold_s * 1e9, abs=0.02e9)
    assert record.achieved is Achieved.INSTALLED, record.reason


@pytest.mark.parametrize(
    ("kind", "name"), [("partition", "isolate-leader"), ("pause", "majority"), ("kill", "minority")]
)
@pytest.mark.parametrize("after_s", [1.0, 2.0005, 2.1, 6.0, 12.0005, 12.1])
def test_whenever_it_is_cancelled_everything_is_healed(kind, name, after_s):
    cluster = FakeCluster()

    async def run():
        task = asyncio.ensure_future(played(cluster, card(kind, name), card(number=2, at_s=100.0)))
        await asyncio.sleep(after_s)
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()  # an impatient user
        with pytest.raises(asyncio.CancelledError):
            await task

    in_no_time(run())
    assert cluster.whole


def test_a_cancelled_play_heals_at_once_and_measures_nothing_more():
    cluster, seen = FakeCluster(), []

    async def run():
        async def before_heal(record):
            raise AssertionError("nothing is copied from nodes that are removed next")

        hooks = Hooks(record=seen.append, before_heal=before_heal)
        task = asyncio.ensure_future(played(cluster, card(), hooks=hooks))
        await asyncio.sleep(6.0)
        task.cancel()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(asyncio.CancelledError):
            await task
        return asyncio.get_running_loop().time() - began_s

    assert in_no_time(run()) < 0.2, "on the loop's own clock, which only sleeps move"
    assert cluster.whole
    assert (seen[-1].achieved, seen[-1].reason) == (Achieved.INDETERMINATE, "it was not measured before heal")
    assert seen[-1].heal_proof.verdict == "indeterminate"


def test_a_fault_that_is_broken_off_has_its_record_closed():
    cluster = FakeCluster()
    seen = []

    async def run():
        async def before_heal(record):
            raise OSError("the disk is full")

        hooks = Hooks(record=seen.append, before_heal=before_heal)
        await played(cluster, card(), hooks=hooks)

    with pytest.raises(OSError, match="the disk is full"):
        in_no_time(run())
    assert cluster.whole
    assert seen[-1].achieved is Achieved.INSTALLED
    assert seen[-1].reason == "healed early: the run was broken off"
    assert seen[-1].heal_proof.verdict == "as ordered"


def test_a_test_that_ends_early_heals_the_fault_in_force_as_ever_and_plays_no_further_card():
    async def ended_after(seconds, *cards):
        ended = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, ended.set)
        return await played(cluster, *cards, ended=ended)

    cluster = FakeCluster()
    (record,), witness = in_no_time(ended_after(5.0, card(), card(number=2, at_s=20.0)))
    assert (record.achieved, record.reason) == (Achieved.INSTALLED, "")
    assert record.heal_ordered_ns == pytest.approx(5e9, abs=0.3e9)
    assert record.heal_proof.links["n1>n2"] == (150, 150)
    assert witness.in_force_before_heal == [True], "copies are taken before it heals"
    assert cluster.whole
    assert in_no_time(ended_after(1.0, card()))[0] == []


def test_the_last_heal_mends_links_and_processes_and_proves_it():
    cluster = FakeCluster(silent=frozenset({("n1", "c2"), ("n3", "n4")}))
    cluster.states |= {"n2": "stopped", "n3": "dead", "n4": "dead"}
    proof = in_no_time(heal_all(cluster, restart=["n3"]))
    assert proof.verdict == "as ordered"
    assert proof.states == {"n1": "running", "n2": "running", "n3": "running", "n4": "dead", "n5": "running"}
    assert len(proof.links) == 7 * 6 and not cluster.silent


def test_a_last_heal_that_fails_says_so_and_never_raises():
    cluster = FakeCluster()
    cluster.silent = cluster.stuck = frozenset({("n1", "n2")})
    cluster.gone = {"n5"}
    proof = in_no_time(heal_all(cluster))
    assert proof.verdict == "not as ordered"
    assert "n1>n2 ordered open: none of 150 beacons arrived" in proof.wrong
    assert any(w.startswith("n5") for w in proof.wrong)


LATE, LOSSY = {"delay_s": 0.2}, {"loss": 0.2}
OF_N2: list[Link] = [("n2", "n4"), ("n4", "n2")]
OF_N4: list[Link] = [("n4", "n2"), ("n4", "n3")]


class ImpairedLinks(FakeCluster):
    """Remembers what is impaired now."""

    def __init__(self) -> None:
        super().__init__()
        self.impaired: dict[Link, Mapping[str, float]] = {}

    async def impair(self, links: Mapping[Link, Mapping[str, float]], seed: int) -> None:
        self.impaired = dict(links)


def fault(words: str) -> Fault:
    return Fault("packets", words)


async def two_faults(
    healed_after_s: float, second: list[Link], measured_s: float = 0.0
) -> tuple[float, Mapping[Link, Any]]:
    """After which time the second fault was injected, and what was impaired then.

    measured_s: how long the measurement after the first one's heal takes."""
    cluster = ImpairedLinks()
    field, late, lossy = Field(cluster), fault("late"), fault("lossy")  # type: ignore[arg-type]
    await field.impair(late, dict.fromkeys(OF_N2, LATE), 1)
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def heal() -> None:
        await asyncio.sleep(healed_after_s)
        await field.unimpair(late)
        await asyncio.sleep(measured_s)
        field.closed(late)

    healing = asyncio.ensure_future(heal())
    await field.impair(lossy, dict.fromkeys(second, LOSSY), 2)
    took, impaired = loop.time() - began, cluster.impaired
    await healing
    return took, impaired


@pytest.mark.parametrize(
    ("healed_after_s", "measured_s", "second", "waits_s", "impaired"),
    [
        (1.2, 0.0, OF_N4, 1.2, dict.fromkeys(OF_N4, LOSSY)),
        # While the heal is measured, its own losses would be taken for those of the fault before.
        (1.2, 2.0, OF_N4, 3.2, dict.fromkeys(OF_N4, LOSSY)),
        (1.2, 0.0, [("n1", "n3")], 0.0, {**dict.fromkeys(OF_N2, LATE), ("n1", "n3"): LOSSY}),
        # Where no heal comes, the latest order holds.
        (60.0, 0.0, OF_N4, IMPAIRED_WAIT_S, {("n2", "n4"): LATE, **dict.fromkeys(OF_N4, LOSSY)}),
    ],
)
def test_a_fault_waits_for_the_heal_of_another_one_on_its_links(
    healed_after_s: float, measured_s: float, second: list[Link], waits_s: float, impaired: Mapping[Link, Any]
) -> None:
    took, found = in_no_time(two_faults(healed_after_s, second, measured_s))
    assert (took, found) == (pytest.approx(waits_s, abs=0.1), impaired)


async def healed_under_a_cut(cut_s: float, *, lossy: bool) -> tuple[float, Proof]:
    """After which time the heal of lossy links is proven, or not, and the proof. cut_s: how long a fault cuts them."""
    field, loop = Field(ImpairedLinks()), asyncio.get_running_loop()  # type: ignore[arg-type]
    healed, cut = fault("lossy"), Fault("partition", "cut", cut=frozenset(OF_N2))
    ordered = Ordered(healed=Condition(values={"n2>n4: share lost": (0.0, 0.1)}))
    records = FaultRecords(Hooks(lambda record: None, lambda record: asyncio.sleep(0)))
    nothing = FaultRecord(Card(1, "packets", "", 0.0, 0.0), Achieved.INDETERMINATE, "", ordered=ordered)
    records.by_number[1] = nothing

    async def measure(*_: object) -> dict[str, float]:
        await asyncio.sleep(0.1)
        return {"n2>n4: share lost": float(lossy or ("n2", "n4") in field.now_cut())}

    await field.cut(cut)
    loop.call_later(cut_s, lambda: asyncio.ensure_future(field.uncut(cut)))
    meter = Meter(field, healed, ordered, lambda: int(loop.time() * 1e9), measure)
    began = loop.time()
    proof = await _until_as_ordered(meter, partial(records.measured, 1))
    return loop.time() - began, proof


@pytest.mark.parametrize(
    ("cut_s", "lossy", "verdict", "after_s"),
    [
        (7.0, False, AS_ORDERED, 7.0),
        (7.0, True, NOT_AS_ORDERED, 7.0),
        (60.0, False, INDETERMINATE, HEAL_HIDDEN_LIMIT_S),
    ],
)
def test_a_heal_is_judged_by_what_no_other_fault_disturbs(
    cut_s: float, lossy: bool, verdict: str, after_s: float
) -> None:
    took, proof = in_no_time(healed_under_a_cut(cut_s, lossy=lossy))
    assert (proof.verdict, took) == (verdict, pytest.approx(after_s, abs=0.6))
