"""A majority that lives and can talk, and no operation that succeeds: injected, and what proves nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import write_header, write_journal

from checkers.base.columns import HISTORY
from checkers.base.history import Type
from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.run_quality.availability import AVAILABILITY, REFUSALS, UNAVAILABLE, Struck, limit_s, whole_majorities
from system_under_test.functions import FUNCTIONS

S = 1_000_000_000
SERVERS, CLIENTS = ("n1", "n2", "n3"), ("c1", "c2")
MAIN_S = 120
DEMANDS = Demands(
    servers=SERVERS,
    client_nodes=CLIENTS,
    nodes=True,
    elections=True,
    faults=True,
    op_timeout_s=2.0,
    recovery_limit_s=60.0,
    concurrency=4,
)
LIMIT_S = limit_s(DEMANDS)
"""Without a change of faults."""


def operations(
    answers: Iterable[tuple[float, Type]], f: str = "read", error: str | None = None
) -> list[dict[str, Any]]:
    """Each second every thread invokes `f`; `answers` gives how those invoked at these seconds end at once."""
    rows = []
    for second, type_ in answers:
        for thread in range(4):
            row = {"process": thread, "f": f, "key": "k0", "node": "n1", "time_ns": int(second * S) + thread}
            rows += [row | {"type": int(Type.INVOKE), "node": ""}, row | {"type": int(type_), "error": error}]
    return rows


def answering(silent: Sequence[tuple[float, float]] = (), f: str = "read") -> list[dict[str, Any]]:
    """An operation of every thread each second of the main phase: ok, but info within these spans."""
    ends = [(second, Type.INFO if any(a < second < b for a, b in silent) else Type.OK) for second in range(MAIN_S)]
    return operations(ends, f)


def cut_off(node: str, from_s: float, to_s: float | None) -> dict[str, Any]:
    others = [each for each in (*SERVERS, *CLIENTS) if each != node]
    cut = [[node, other] for other in others] + [[other, node] for other in others]
    return fault(from_s, to_s, cut=cut)


def fault(from_s: float, to_s: float | None, kind: str = "partition", **more: Any) -> dict[str, Any]:
    healed_ns = -1 if to_s is None else int(to_s * S)
    return {
        "card": {"number": 1, "kind": kind, "name": "x", "at_s": from_s, "heal_s": to_s or 0.0},
        "achieved": "installed",
        "injected_ns": int(from_s * S),
        "heal_ordered_ns": healed_ns,
        "healed_ns": healed_ns,
        "apply_ms": 0.0,
        "nodes": [],
        "cut": [],
        "settings": {},
        "ordered": {"held": {}, "healed": {}},
    } | more


def judged(
    folder: Path, rows: list[dict[str, Any]], faults: Sequence[dict[str, Any]], demands: Demands = DEMANDS, **more: Any
) -> Verdict:
    ordered = sorted(rows, key=lambda row: row["time_ns"])
    blank = dict.fromkeys(HISTORY.names)
    table = pa.Table.from_pylist([blank | row | {"index": i} for i, row in enumerate(ordered)], HISTORY)
    outcome = {"phases": [{"name": "main", "start_ns": 0, "end_ns": MAIN_S * S}], "deaths": [], **more}
    folder.mkdir(exist_ok=True)
    run = StoredRun(folder, demands)
    pq.write_table(table, run.history, row_group_size=100)
    write_header(folder)
    write_journal(folder, outcome=outcome, faults=faults)
    return AVAILABILITY.combine(run, [])


def test_a_run_that_answers_all_the_while_is_valid(tmp_path: Path) -> None:
    verdict = judged(tmp_path, answering(), [cut_off("n1", 30, 60)])
    assert verdict.validity is Validity.VALID, verdict.reason
    assert verdict.looked_at["seconds with a whole majority"] == MAIN_S
    assert verdict.looked_at["longest silence in seconds"] == 1.0


def test_servers_that_do_not_vote_make_no_majority(tmp_path: Path) -> None:
    """Two of three voters are down.  With two brokers the third would be three of five servers."""
    down = fault(20, 100, "kill", nodes=["n2", "n3"])
    five = replace(DEMANDS, servers=("n1", "n2", "n3", "n4", "n5"))
    silent = answering([(20.0, MAIN_S)])
    of_five, of_voters = (judged(tmp_path, silent, [down], replace(five, voters=v)) for v in ((), SERVERS))
    spans = [verdict.looked_at["seconds with a whole majority"] for verdict in (of_five, of_voters)]
    assert spans == [MAIN_S, 40.0]
    assert of_five.validity is not Validity.VALID and of_voters.validity is Validity.VALID


SILENCE = [(30.0, 75.0)]


def test_a_silence_is_named_and_leaves_the_verdict_unknown_where_no_limit_is_stated(tmp_path: Path) -> None:
    verdict = judged(tmp_path, answering(SILENCE), [cut_off("n1", 30, 60)])
    assert verdict.validity is Validity.UNKNOWN
    assert "no operation succeeded for 45.0 s, from 30.0 to 75.0 s" in verdict.reason
    assert "n2 and n3 ran, reached each other and were reached by c1" in verdict.reason
    assert "; " not in verdict.reason, "each part of a reason is one thing to do"
    assert verdict.details["silences"][0]["changes"] == 1  # the heal
    assert re.search(r"the limit is [\d.]+ s, with 1 change of faults meanwhile", verdict.reason)


def stated(limit_s: float) -> Demands:
    return replace(DEMANDS, unavailable_s=limit_s)


ALONE, LOCKS = replace(DEMANDS, elections=False), replace(DEMANDS, ok_share=0.5)
WAIVED = replace(DEMANDS, waived=("availability",))
FLAPPING = [cut_off("n1", 30 + 4 * i, 32 + 4 * i) for i in range(8)]
UNTIL_60 = [cut_off("n1", 30, 60)]
VALID, INVALID, UNKNOWN = Validity.VALID, Validity.INVALID, Validity.UNKNOWN


@pytest.mark.parametrize(
    ("silent", "faults", "demands", "expected", "words"),
    [
        ((30, 75), UNTIL_60, stated(10), INVALID, "45.0 s"),
        ((30, 75), UNTIL_60, stated(50), VALID, ""),
        ((30, 44.5), [cut_off("n1", 30, 43)], stated(5), INVALID, "13.0 s, from 30.0 to 43.0 s"),  # before the heal
        ((30, 39), [cut_off("n1", 30, 34)], stated(5), VALID, ""),
        ((50, 53 + LIMIT_S), [], DEMANDS, UNKNOWN, f"the limit is {LIMIT_S:g} s:"),  # without any fault
        ((30, 60 + LIMIT_S), FLAPPING, DEMANDS, VALID, ""),  # each change of faults may cost an election
        ((30, 60 + LIMIT_S), [cut_off("n1", 30, 110)], DEMANDS, UNKNOWN, "no operation"),
        ((30, 75), [cut_off("n1", 30, 74)], ALONE, VALID, ""),  # without elections all servers are needed
        ((30, 75), [], ALONE, UNKNOWN, "no operation"),
        ((30, 75), [], LOCKS, Validity.NOT_APPLICABLE, "wait"),
        ((30, 75), UNTIL_60, WAIVED, VALID, ""),
    ],
)
def test_a_silence_is_compared_with_its_limit(
    tmp_path: Path, silent: tuple[float, float], faults: Any, demands: Demands, expected: Validity, words: str
) -> None:
    verdict = judged(tmp_path, answering([silent]), faults, demands)
    assert verdict.validity is expected, verdict.reason
    assert words in verdict.reason + "".join(witness.summary for witness in verdict.witnesses)
    assert {(w.kind, *w.facts["nodes"]) for w in verdict.witnesses} <= {(UNAVAILABLE, "n2", "n3")}
    if demands is WAIVED:
        assert verdict.details["waived"][0].startswith("no operation succeeded for 45.0 s")


def test_one_function_that_never_succeeds_is_named(tmp_path: Path) -> None:
    rows = answering([(20, 100)]) + answering(f="write")
    verdict = judged(tmp_path, rows, [cut_off("n1", 20, 100)])
    assert verdict.validity is UNKNOWN
    assert "no read succeeded for 80.0 s" in verdict.reason and "no operation" not in verdict.reason


def test_where_hardly_anything_was_invoked_a_silence_says_nothing(tmp_path: Path) -> None:
    rows = operations([(1.0, Type.OK), (50.0, Type.INFO), (119.0, Type.OK)])
    assert judged(tmp_path, rows, []).validity is VALID


def test_what_the_run_measured_may_excuse_a_silence(tmp_path: Path) -> None:
    deaths = [{"node": "n2", "time_ns": 31 * S, "status": -11, "ordered": False}]
    assert judged(tmp_path, answering(SILENCE), [cut_off("n1", 30, 90)], deaths=deaths).validity is VALID
    stalls = [{"time_ns": 60 * S, "stall_ms": 29_000.0}]
    verdict = judged(tmp_path / "stalls", answering(SILENCE), [], stated(10), loop_stalls=stalls)
    assert verdict.validity is UNKNOWN and "stood still" in verdict.reason


PAUSED = {"held": {"states": {"n1": "stopped", "n2": "stopped"}}, "healed": {}}
KILLED = {"held": {"states": dict.fromkeys(SERVERS, "dead")}}
MAY_BE_GONE = {"may_stay_down": True}


@pytest.mark.parametrize(
    ("to_s", "faults"),
    [
        (30 + LIMIT_S, [cut_off("n1", 30, 90)]),  # within the limit
        (100, [cut_off("n1", 30, 95), cut_off("n2", 32, 98)]),  # no two reach each other
        (95, [fault(30, 90, "pause", nodes=["n1", "n2"], ordered=PAUSED)]),
        (95, [fault(30, 90, "disk", nodes=["n1", "n3"])]),
        (95, [fault(30, 90, "mystery")]),  # it is not known what the fault touched
        (95, [fault(30, 90, "membership", nodes=["n1"], settings={"changes_members": True})]),
        (95, [fault(30, 40, nodes=["n1"], over_budget=True)]),  # a majority lost its data
        (95, [fault(30, 40, "damage", nodes=["n1"], settings=MAY_BE_GONE), fault(50, None, nodes=["n2"])]),
        (95, [fault(30, 90, cut=[[c, n] for c in CLIENTS for n in ("n2", "n3")])]),  # no client reaches a majority
        (95, [fault(30, 90, cut=[["n1", "n2"]])]),  # a server is heard by a part and hears all
        (
            110,
            [fault(30, 60, "packets", nodes=["n1"], settings={"links": [["n2", "n3"]]}), fault(60, None, nodes=["n3"])],
        ),
        (92, [fault(30, 40, "kill", nodes=[*SERVERS], ordered=KILLED)]),  # they have the recovery limit to come back
    ],
)
def test_what_is_no_whole_majority_excuses_the_silence(
    tmp_path: Path, to_s: float, faults: list[dict[str, Any]]
) -> None:
    verdict = judged(tmp_path, answering([(30, to_s)]), faults)
    assert verdict.validity in (Validity.VALID, Validity.NOT_APPLICABLE), verdict.reason


def killed(node: str, from_s: float, to_s: float) -> dict[str, Any]:
    return fault(from_s, to_s, "kill", nodes=[node], ordered={"held": {"states": {node: "dead"}}, "healed": {}})


def report(node: str, time_s: float, until_s: float = MAIN_S, leader: str | None = "n1") -> dict[str, Any]:
    span = {"time_ns": int(time_s * S), "until_ns": int(until_s * S), "looks": 9}
    return span | {"node": node, "epoch": 1, "role": "follower", "leader": leader}


IN_TURN = [cut_off("n2", 10, 20), cut_off("n3", 25, 35), cut_off("n2", 40, 50), cut_off("n3", 55, 65)]


def test_faults_in_turn_leave_a_majority_all_the_while(tmp_path: Path) -> None:
    """No two servers are whole for long, and two of three are at every moment."""
    verdict = judged(tmp_path, answering([(10, 55)]), IN_TURN)
    assert verdict.validity is Validity.UNKNOWN
    assert "although at every moment 2 of n1, n2 and n3 ran" in verdict.reason
    assert "were reached by a client" in verdict.reason
    assert verdict.looked_at["seconds with a whole majority"] == MAIN_S
    limit = stated(8.0)  # each heal may take a connection's back-off, and there are three
    within = judged(tmp_path / "stated", answering([(10, 42)]), IN_TURN, limit)
    assert within.validity is Validity.VALID, within.reason
    assert judged(tmp_path / "stated", answering([(10, 75)]), IN_TURN, limit).validity is Validity.INVALID


@pytest.mark.parametrize(
    ("reports", "rows", "whole_s"),
    [
        ([], [], 70.0),
        ([report("n2", 44)], [], 116.0),  # it reported a leader 4 s after its start
        ([report("n2", 44, leader=None)], [], 70.0),
        ([report("n2", 0, 29)], [], 70.0),  # before it was killed
        ([], operations([(42.0, Type.OK)]), 118.0),
    ],
)
def test_a_restarted_server_counts_once_it_answers(
    tmp_path: Path, reports: list[dict[str, Any]], rows: list[dict[str, Any]], whole_s: float
) -> None:
    """n3 is cut off from 40 s on, when the server of n2 is started again; without n2 two of three are not whole."""
    rows = [row | {"node": "n2"} for row in rows]
    faults = [killed("n2", 30, 40), cut_off("n3", 40, 90)]
    verdict = judged(tmp_path, answering() + rows, faults, reports=reports)
    assert verdict.validity is Validity.VALID, verdict.reason
    assert verdict.looked_at["seconds with a whole majority"] == whole_s


def test_where_no_majority_was_whole_for_long_nothing_is_judged(tmp_path: Path) -> None:
    both = [cut_off("n2", start, start + 20) for start in range(5, 120, 25)]
    verdict = judged(tmp_path, answering(), [*both, cut_off("n3", 5, None)])
    assert verdict.validity is Validity.NOT_APPLICABLE
    assert re.search(r"up and reachable for 25.0 s in all, and never for longer than the limit of 16 s", verdict.reason)


def test_only_clients_that_reach_the_majority_count(tmp_path: Path) -> None:
    """c2 is cut off with n1, and c1 invokes nothing."""
    group = {"n1", "c2"}
    everyone = (*SERVERS, *CLIENTS)
    cut = [[a, b] for a in everyone for b in everyone if (a in group) != (b in group)]
    rows = [row for row in answering([(30, 90)]) if row["process"] % 2 == 1 or not 30 < row["time_ns"] / S < 90]
    assert judged(tmp_path, rows, [fault(30, 88, cut=cut)]).validity is Validity.VALID


def test_where_each_client_keeps_to_one_server_those_of_the_majority_count(tmp_path: Path) -> None:
    """Threads 0 and 3 keep to n1, which is paused, and the others ask nothing: nobody asked n2 or n3."""
    demands = replace(DEMANDS, each_server_serves=True)
    rows = [row for row in answering([(30, 90)]) if row["process"] % 3 == 0 or not 30 < row["time_ns"] / S < 90]
    stopped = {"held": {"states": {"n1": "stopped"}}, "healed": {}}
    faults = [fault(30, 90, "pause", nodes=["n1"], ordered=stopped)]
    assert judged(tmp_path, rows, faults, demands).validity is Validity.VALID
    assert judged(tmp_path / "asked", answering([(30, 90)]), faults, demands).validity is Validity.UNKNOWN


def test_an_answer_that_could_not_be_ok_is_a_success(tmp_path: Path) -> None:
    rows = operations([(s, Type.FAIL) for s in range(MAIN_S)], "cas", "mismatch")
    assert judged(tmp_path, rows, []).validity is Validity.VALID
    rows = operations([(s, Type.FAIL) for s in range(MAIN_S)], "cas", "refused: no leader")
    assert judged(tmp_path / "refused", rows, []).validity is Validity.UNKNOWN
    of_locks = {"acquire", "acquire_lease", "acquire_token", "fenced_write"}
    assert {f.refusal for name, f in FUNCTIONS.items() if f.refusal and name not in of_locks} == REFUSALS


@pytest.mark.parametrize("starved", [True, False])
def test_the_machine_is_blamed_only_by_its_own_measurements(tmp_path: Path, starved: bool) -> None:
    """A processor that is always in use is no excuse; a server that waited for one half of the time is one."""
    rows = [
        {"time_ns": s * S, "pressure_s": s * 0.99, "waited_s": s * (0.8 if starved else 0.05), "ran_s": s * 0.1}
        for s in range(0, MAIN_S, 2)
    ]
    verdict = judged(tmp_path, answering(SILENCE), [], stated(10), processor={"n2": rows})
    assert verdict.validity is (Validity.UNKNOWN if starved else Validity.INVALID)
    assert ("the server of n2 waited for a processor for 80% of the time" in verdict.reason) is starved


def test_whole_majorities_equal_a_look_at_every_moment() -> None:
    """Brute force: which sets are whole is decided anew at each tick, by the definition, without spans or edges."""
    rng = Random(4)
    servers, clients, length = ("n1", "n2", "n3", "n4", "n5"), CLIENTS, 40
    everyone = (*servers, *clients)
    seen = 0
    for _ in range(60):
        struck = []
        for _ in range(rng.randrange(5)):
            begin = rng.randrange(length)
            nodes = frozenset(rng.sample(everyone, rng.randrange(3)))
            links = frozenset(tuple(rng.sample(everyone, 2)) for _ in range(rng.choice((0, 2, 6))))
            if links and rng.random() < 0.5:
                links |= {(b, a) for a, b in links}
            struck.append(Struck(begin, begin + rng.randrange(1, 20), nodes, links, rng.random() < 0.05))
        spans = whole_majorities(servers, clients, 3, struck, (0, length))
        seen += len(spans)
        for tick in range(length):
            expected = {
                (chosen, client)
                for chosen in combinations(servers, 3)
                for client in clients
                if _is_whole(chosen, client, servers, struck, tick)
            }
            assert {(w.servers, w.client) for w in spans if w.begin_ns <= tick < w.end_ns} == expected
    assert seen > 300


def _is_whole(chosen: Sequence[str], client: str, servers: Sequence[str], struck: Sequence[Struck], tick: int) -> bool:
    now = [each for each in struck if each.begin_ns <= tick < each.end_ns]
    if any(each.everything or each.nodes & {*chosen, client} for each in now):
        return False
    cut = {link for each in now for link in each.links}
    for a in (*chosen, client):
        for b in chosen:
            if a != b and ({(a, b), (b, a)} & cut):
                return False
    for outside in set(servers) - set(chosen):
        open_, cut_both = 0, 0
        for inside in chosen:
            directions = {(outside, inside), (inside, outside)} & cut
            open_ += not directions
            cut_both += len(directions) == 2
        if open_ != len(chosen) and cut_both != len(chosen):
            return False
    return True
