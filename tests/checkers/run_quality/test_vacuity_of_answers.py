"""Did enough operations succeed, throughout the run, of every function and on every server?

Were the faults in force, and did each kind of them reach the system?
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from records_of_runs import fault_of
from test_vacuity import figure, in_order, judged, main_of, run
from toy_quorum import Evidence, Quorum

from checkers.base.history import Type
from checkers.base.stored_run import Demands
from checkers.base.verdict import Validity
from checkers.run_quality import minimums

FINAL_NS = 10**12
SECOND = 1_000_000_000


def test_a_run_that_did_nearly_nothing_of_its_demands_is_unknown(tmp_path: Path) -> None:
    """209 ok operations of 8,000 scheduled were once a green run."""
    evidence = run()
    main = main_of(evidence)
    fault = evidence.faults[0]
    main["end_ns"] = fault["healed_ns"] + 20_000_000_000
    evidence.demands = replace(evidence.demands, keys=("k0", "k1"), rate_hz=200.0, time_limit_s=40.0)
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.UNKNOWN
    short = {c["name"] for c in verdict.details["criteria"] if c["demanded"] and not c["met"]}
    assert short >= {"ok operations", "keys with enough ok writes", "share of the scheduled rate"}
    assert figure(verdict, "ok operations")["least"] == 800
    assert all(name in verdict.reason for name in short)
    assert "give a lower --rate" in verdict.reason


def invoked_hz(evidence: Evidence, after_s: int) -> float:
    """Let the main phase end some seconds after the heal; return the rate at which clients invoked in it."""
    main = main_of(evidence)
    main["end_ns"] = evidence.faults[0]["healed_ns"] + after_s * SECOND
    invoked = sum(row["type"] == 0 and main["start_ns"] <= row["time_ns"] < main["end_ns"] for row in evidence.history)
    return invoked / (main["end_ns"] - main["start_ns"]) * 1e9


def test_a_few_slow_seconds_between_dense_faults_do_not_say_that_the_rate_was_missed(tmp_path: Path) -> None:
    evidence = run()
    rate_hz = invoked_hz(evidence, 7)
    evidence.demands = replace(evidence.demands, rate_hz=rate_hz, time_limit_s=1.0)
    share = figure(judged(evidence, tmp_path / "busy"), "share of the scheduled rate")
    assert share["value"] == pytest.approx(1.0, abs=0.01) and share["met"]
    calm_hz = float(share["words"].split()[0])
    assert calm_hz < 0.8 * rate_hz
    evidence.demands = replace(evidence.demands, rate_hz=2 * rate_hz)
    assert not figure(judged(evidence, tmp_path / "slow"), "share of the scheduled rate")["met"]


@pytest.mark.parametrize(("holds", "demanded"), [(1.0, True), (1.5, False)])
def test_the_seconds_before_the_first_fault_do_not_decide_the_rate_alone(
    tmp_path: Path, holds: float, demanded: bool
) -> None:
    """A system whose faults are stretched has a longer quiet begin, too, in which its servers are cold."""
    evidence = run()
    main, fault = main_of(evidence), evidence.faults[0]
    before_ns = fault["injected_ns"] - main["start_ns"]
    calm_ns = int((minimums.CALM_S_LEAST + 1) * SECOND)
    main["end_ns"] = fault["healed_ns"] + int(minimums.AFTERMATH_NS * holds) + calm_ns - before_ns
    evidence.demands = replace(evidence.demands, rate_hz=10_000.0, time_limit_s=1.0, holds=holds)
    found = figure(judged(evidence, tmp_path), "share of the scheduled rate")
    assert f"in {minimums.CALM_S_LEAST + 1:g} s outside faults" in found["words"]
    assert (found["met"], found["demanded"]) == (False, demanded)


@pytest.mark.parametrize(("share", "met"), [(1.0, True), (0.85, True), (0.75, False)])
def test_of_clients_that_wait_only_the_rate_that_they_can_reach_is_demanded(
    tmp_path: Path, share: float, met: bool
) -> None:
    """Clients that wait for half of the time invoke half of the scheduled rate, and four fifths of that are enough."""
    evidence = run()
    evidence.demands = replace(
        evidence.demands, rate_hz=invoked_hz(evidence, 7) / share, invoked_share=0.5, time_limit_s=1.0
    )
    found = figure(judged(evidence, tmp_path), "share of the scheduled rate")
    assert found["value"] == pytest.approx(0.5 * share, abs=0.01)
    assert (found["least"], found["met"]) == (0.4, met)
    assert "so 50% of the rate is enough" in found["words"]


def hung(rate_hz: float, ok_at_s: tuple[float, ...] = ()) -> Evidence:
    """After the fault the main phase lasts a minute more.  Clients invoke ten operations a second, and answers come at
    some seconds of that minute only."""
    evidence = run()
    main = main_of(evidence)
    fault = evidence.faults[0]
    main["end_ns"] = fault["healed_ns"] + 60 * SECOND
    like = next(row for row in evidence.history if (row["f"], row["type"]) == ("read", Type.OK))
    for tenth in range(590):
        at_ns = fault["healed_ns"] + SECOND + tenth * SECOND // 10
        answer = Type.OK if tenth / 10 in ok_at_s else Type.INFO
        for place, type_ in enumerate((Type.INVOKE, answer)):
            evidence.history.append(like | {"type": type_, "process": 950 + tenth, "time_ns": at_ns + place})
    evidence.demands = replace(evidence.demands, rate_hz=rate_hz, time_limit_s=1.0, op_timeout_s=2.0)
    return in_order(evidence)


@pytest.mark.parametrize(
    ("rate_hz", "every_s", "until_s", "ok_share", "value", "demanded"),
    [
        (0.0, 1, 4, 1.0, 0, True),  # it hangs after its first answers
        (10.0, 1, 4, 1.0, 0, True),
        (0.0, 3, 60, 1.0, 10, True),
        (0.0, 1, 2, 0.5, 0, False),  # a lock may be held all the while
    ],
)
def test_answers_come_throughout_the_main_phase(
    rate_hz: float, every_s: int, until_s: int, ok_share: float, value: int, demanded: bool, tmp_path: Path
) -> None:
    evidence = hung(rate_hz, ok_at_s=tuple(map(float, range(0 if value else 1, until_s, every_s))))
    evidence.demands = replace(evidence.demands, ok_share=ok_share)
    verdict = judged(evidence, tmp_path)
    shown = figure(verdict, "stretches with an ok answer")
    assert (shown["value"], shown["least"], shown["met"], shown["demanded"]) == (value, 10, value == 10, demanded)
    if value:
        assert verdict.validity is Validity.VALID, verdict.reason
    else:
        assert "the first without an ok answer began" in shown["words"]
        assert ("stretches with an ok answer: got 0" in verdict.reason) is demanded


def each_serves() -> Evidence:
    """Every server answers a client of its own, and is read at the end."""
    evidence = run()
    evidence.demands = replace(evidence.demands, each_server_serves=True, each_server_read_at_end=True)
    evidence.outcome["phases"].append({"name": "final reads", "start_ns": FINAL_NS, "end_ns": FINAL_NS + 9})
    wanted = {key for _, key in evidence.demands.final_reads}
    for key in sorted(wanted):
        last = max(i for i, r in enumerate(evidence.history) if (r["f"], r["key"], r["type"]) == ("read", key, Type.OK))
        for server in evidence.demands.servers:
            process = 900 + int(server[1:])
            for at_ns, row in enumerate(evidence.history[last - 1 : last + 1]):
                node = server if row["type"] == Type.OK else ""
                moved = {"process": process, "node": node, "time_ns": FINAL_NS + at_ns, "index": len(evidence.history)}
                evidence.history.append(row | moved)
    return evidence


def test_every_server_that_has_clients_of_its_own_must_answer_them(tmp_path: Path) -> None:
    sound = judged(each_serves(), tmp_path / "sound")
    assert sound.validity is Validity.VALID, sound.reason
    assert figure(sound, "servers that answered clients")["least"] == 5
    refusing = each_serves()
    for row in refusing.history:
        if row["node"] == "n5" and row["type"] == Type.OK:
            row["type"] = Type.FAIL
    verdict = judged(refusing, tmp_path / "refusing")
    assert verdict.validity is Validity.UNKNOWN
    assert "not so: n5" in figure(verdict, "servers that answered clients")["words"]
    assert not figure(verdict, "servers read at the end")["met"]


def test_every_server_is_read_at_the_end_unless_a_fault_damaged_its_disk(tmp_path: Path) -> None:
    early = each_serves()
    early.outcome["phases"][-1]["start_ns"] = FINAL_NS + 2
    verdict = judged(early, tmp_path / "early")
    assert figure(verdict, "servers that answered clients")["met"]
    assert "not so: n1, n2, n3, n4, n5" in figure(verdict, "servers read at the end")["words"]
    lacking = each_serves()
    for row in lacking.history:
        if (row["node"], row["key"], row["process"]) == ("n5", "k0", 905):
            row["type"] = Type.INFO
    read = figure(judged(lacking, tmp_path / "one key"), "servers read at the end")
    assert (read["value"], read["met"]) == (4, False)
    assert "a read of each of 2 keys at the end" in read["words"] and "not so: n5" in read["words"]
    damage = {"cut": [], "nodes": ["n5"], "settings": {"damages_data": True}, "leader": None}
    lacking.faults.append(lacking.faults[0] | damage | {"card": {"number": 7, "kind": "damage"}})
    assert figure(judged(lacking, tmp_path / "damaged"), "servers read at the end")["met"]


def with_many(evidence: Evidence, f: str, type_: Type, payload: str | None = None) -> Evidence:
    """Add operations of one function, of which each ends in this way."""
    like = next(row for row in evidence.history if row["type"] == Type.OK)
    for _ in range(minimums.INVOKED_LEAST):
        for each in (Type.INVOKE, type_):
            more = {"f": f, "type": each, "payload": payload, "process": 950, "index": len(evidence.history)}
            evidence.history.append(like | more)
    return evidence


@pytest.mark.parametrize(("type_", "met"), [(Type.OK, True), (Type.FAIL, False), (Type.INFO, False)])
def test_a_function_of_which_no_operation_was_ever_ok_was_not_tested(tmp_path: Path, type_: Type, met: bool) -> None:
    answered = figure(judged(with_many(run(), "cas", type_), tmp_path), "functions with an ok answer")
    assert answered["met"] is met
    assert ("cas never succeeded" in answered["words"]) is not met


def test_a_function_that_no_client_invoked_is_named_and_decides_nothing(tmp_path: Path) -> None:
    evidence = run()
    evidence.demands = replace(evidence.demands, functions=frozenset({"read", "write", "cas"}))
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID, verdict.reason
    assert verdict.details["never_invoked"] == ["cas"]
    assert figure(verdict, "functions with an ok answer")["words"].endswith("; cas was never invoked")


@pytest.mark.parametrize(
    ("steps", "writes"),
    [
        ('[["r", "x", null]]', 0),
        ('[["r", "r", [1, 2]], ["r", "append", 3]]', 0),
        ("[]", 0),
        ('[["r", "x", null], ["append", "x", 1]]', minimums.INVOKED_LEAST),
        ('[["w","x",1]]', minimums.INVOKED_LEAST),
        ('[["read-modify", "x", 1]]', minimums.INVOKED_LEAST),
        (None, minimums.INVOKED_LEAST),
    ],
)
def test_a_transaction_counts_as_a_write_if_a_step_of_it_writes(tmp_path: Path, steps: str | None, writes: int) -> None:
    both = frozenset({"txn"})
    evidence = run()
    evidence.demands = replace(evidence.demands, reads=both, writes=both, nemesis="partition")
    fault = evidence.faults[0]
    begin = len(evidence.history)
    with_many(evidence, "txn", Type.OK, steps)
    for row in evidence.history[begin:]:
        row["time_ns"] = fault["injected_ns"] + 1
    in_order(evidence)
    assert figure(judged(evidence, tmp_path), "ok writes in faults")["value"] == writes


@pytest.mark.parametrize(("answered", "met"), [(1, False), (10, True)])
def test_reads_that_nearly_all_timed_out_show_nothing_although_the_final_ones_were_ok(
    tmp_path: Path, answered: int, met: bool
) -> None:
    """Writes alone once made such a run a real test."""
    evidence = run()
    main = main_of(evidence)
    like = next(row for row in evidence.history if (row["f"], row["type"]) == ("read", Type.OK))
    evidence.history = [
        row for row in evidence.history if row["f"] != "read" or not main["start_ns"] <= row["time_ns"] < main["end_ns"]
    ]
    for number in range(100):
        for place, type_ in enumerate((Type.INVOKE, Type.OK if number < answered else Type.FAIL)):
            at_ns = main["start_ns"] + number * 100 + place
            evidence.history.append(like | {"type": int(type_), "process": 4000 + number, "time_ns": at_ns})
    in_order(evidence)
    found = figure(judged(evidence, tmp_path), "ok reads in the main phase")
    assert (found["value"], found["least"], found["met"]) == (answered, 2, met)


def advice(evidence: Evidence, folder: Path) -> str:
    return str(figure(judged(evidence, folder), "share of the scheduled rate")["advice"])


def test_a_lower_rate_is_advised_only_where_a_measurement_says_so(tmp_path: Path) -> None:
    evidence = run()
    main = main_of(evidence)
    healed_ns = evidence.faults[0]["healed_ns"]
    main["end_ns"] = healed_ns + 9 * SECOND
    evidence.demands = replace(evidence.demands, rate_hz=200.0, time_limit_s=9.0)
    of_recovery = advice(evidence, tmp_path / "recovery")
    assert "of faults and of recovery" in of_recovery and "--time-limit" in of_recovery
    assert "--rate" not in of_recovery
    main["end_ns"] = healed_ns + 20 * SECOND
    assert advice(evidence, tmp_path / "calm").startswith(
        "the system answers more slowly than scheduled: give a lower --rate"
    )
    sums = [{"time_ns": at * SECOND, "pressure_s": 0.9 * at, "waited_s": 0.3 * at} for at in range(0, 40, 2)]
    evidence.outcome["processor"] = {"n1": sums}
    of_machine = advice(evidence, tmp_path / "machine")
    assert "this machine was busy, processes waited for a processor for 90% of the time" in of_machine
    assert "give a lower --rate" in of_machine
    for row in (row for row in evidence.history if row["time_ns"] > healed_ns and row["type"] == Type.OK):
        row |= {"type": int(Type.INFO), "error": "timeout"}
    last = dict(evidence.history[-1]) | {
        "type": int(Type.INFO),
        "error": "timed out",
        "time_ns": healed_ns + 8 * SECOND,
    }
    evidence.history += [last | {"index": len(evidence.history) + n, "process": 5000 + n} for n in range(80)]
    evidence.demands = replace(evidence.demands, op_timeout_s=2.0, concurrency=10)
    of_system = advice(evidence, tmp_path / "system")
    assert "ended by their time-out" in of_system and "the system did not answer" in of_system


def test_a_fault_that_leaves_the_leader_its_majority_calls_for_no_election(tmp_path: Path) -> None:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write("k0")
    quorum.cut({"n4", "n5"})
    quorum.write("k0")
    quorum.heal()
    quorum.read_all()
    verdict = judged(quorum.evidence(), tmp_path)
    assert verdict.validity is Validity.VALID, verdict.reason
    assert figure(verdict, "elections won under a fault")["least"] == 0


@pytest.mark.parametrize("kind", ["pause", "kill"])
def test_a_leader_paused_or_killed_calls_for_an_election(kind: str, tmp_path: Path) -> None:
    evidence = run()
    evidence.faults[0] |= {"cut": [], "nodes": ["n1"], "card": dict(evidence.faults[0]["card"]) | {"kind": kind}}
    assert figure(judged(evidence, tmp_path), "elections won under a fault")["value"] == 1


def test_an_election_counts_from_the_order_on_for_it_may_have_its_effect_at_once(tmp_path: Path) -> None:
    evidence = run()
    fault = evidence.faults[0]
    elected_ns = next(row["time_ns"] for row in evidence.traces["n2"] if row["role"] == "leader")
    took_ns = elected_ns + 1 - fault["injected_ns"]
    fault |= {"injected_ns": elected_ns + 1, "apply_ms": 0.0}
    assert figure(judged(evidence, tmp_path / "late"), "elections won under a fault")["value"] == 0
    fault |= {"apply_ms": took_ns / 1e6}
    assert figure(judged(evidence, tmp_path / "ordered"), "elections won under a fault")["value"] == 1


def test_a_disk_that_a_fault_damaged_owes_no_log(tmp_path: Path) -> None:
    evidence = run()
    evidence.logs["n5"] = []
    evidence.copies = [c | {"error": "no batch begins here"} if c["node"] == "n5" else c for c in evidence.copies]
    names = ("vacuity", "log-matching", "committed-never-lost")
    verdicts = evidence.judge(tmp_path / "unexplained", *names)
    assert {v.validity for v in verdicts.values()} == {Validity.UNKNOWN}
    damage = {"cut": [], "nodes": ["n5"], "settings": {"damages_data": True}, "leader": None}
    began_ns = evidence.faults[0]["heal_ordered_ns"] - 1
    times = {"injected_ns": began_ns, "heal_ordered_ns": began_ns + 2, "healed_ns": began_ns + 2}
    evidence.faults.append(evidence.faults[0] | damage | times | {"card": {"number": 7, "kind": "damage"}})
    verdicts = evidence.judge(tmp_path / "damaged", *names)
    assert {name: v.reason for name, v in verdicts.items() if v.validity is not Validity.VALID} == {}


@pytest.mark.parametrize(
    ("nemesis", "validity"), [("partition", Validity.UNKNOWN), ("schedule", Validity.UNKNOWN), ("none", Validity.VALID)]
)
def test_a_run_that_was_to_break_nothing_needs_no_fault(nemesis: str, validity: Validity, tmp_path: Path) -> None:
    evidence = run()
    evidence.faults = []
    evidence.demands = replace(evidence.demands, nemesis=nemesis)
    assert judged(evidence, tmp_path).validity is validity


def test_elections_are_seen_without_traces_too(tmp_path: Path) -> None:
    evidence = run()
    evidence.demands = replace(evidence.demands, logs=False, traces=False)
    evidence.traces, evidence.logs, evidence.copies = {}, {}, []
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID, verdict.reason
    assert figure(verdict, "elections won under a fault")["value"] == 1


def test_a_run_over_its_data_budget_says_so(tmp_path: Path) -> None:
    evidence = run()
    evidence.faults[0]["over_budget"] = True
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID
    assert not figure(verdict, "data budget kept")["met"]
    assert "excused" in figure(verdict, "data budget kept")["words"]


@pytest.mark.parametrize(("servers", "demanded"), [(1, False), (3, True)])
def test_nothing_can_be_answered_while_a_fault_strikes_the_only_server(
    servers: int, demanded: bool, tmp_path: Path
) -> None:
    evidence = run()
    names = evidence.demands.servers[:servers]
    evidence.demands = replace(evidence.demands, servers=names, elections=False)
    evidence.faults[0] |= {"nodes": [names[0]], "cut": []}
    shown = [criterion["name"] for criterion in judged(evidence, tmp_path).details["criteria"]]
    assert ("share of ok operations in faults" in shown) == ("ok writes in faults" in shown) == demanded


def test_a_server_that_some_client_reaches_is_not_struck() -> None:
    demands = Demands(servers=("n1",), client_nodes=("c1", "c2"))
    one, both = [["c1", "n1"]], [["c1", "n1"], ["n1", "c2"]]
    assert not minimums.strikes_the_only_server(fault_of({"nodes": [], "cut": one}), demands)
    assert minimums.strikes_the_only_server(fault_of({"nodes": [], "cut": both}), demands)
    assert minimums.strikes_the_only_server(fault_of({"nodes": ["n1"], "cut": []}), demands)
    assert not minimums.strikes_the_only_server(
        fault_of({"nodes": ["n1"], "cut": []}), replace(demands, servers=("n1", "n2"))
    )


@pytest.mark.parametrize(
    ("kind", "skips", "impossible", "nemesis", "validity", "words"),
    [
        ("partition", 1, False, "", Validity.VALID, ""),  # skipped for a stated reason
        ("clock", 1, False, "", Validity.VALID, ""),
        ("clock", 2, False, "", Validity.UNKNOWN, "never in force: clock"),
        ("clock", 1, True, "", Validity.UNKNOWN, "impossible here: clock"),
        ("clock", 0, False, "partition,clock,disk", Validity.VALID, "the time was too short for: clock, disk"),
    ],
)
def test_a_kind_of_fault_that_never_reached_the_system_was_not_tested(
    kind: str, skips: int, impossible: bool, nemesis: str, validity: Validity, words: str, tmp_path: Path
) -> None:
    evidence = run()
    skipped = {"achieved": "skipped", "reason": "no node led for 5 s", "injected_ns": -1, "impossible": impossible}
    card = {"card": evidence.faults[0]["card"] | {"kind": kind}}
    evidence.faults += [evidence.faults[0] | skipped | card for _ in range(skips)]
    evidence.demands = replace(evidence.demands, nemesis=nemesis or evidence.demands.nemesis)
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is validity, verdict.reason
    assert words in figure(verdict, "kinds of fault installed")["words"]


def test_a_kind_of_fault_that_was_never_in_force_is_recorded_with_the_reason(tmp_path: Path) -> None:
    evidence = run()
    skipped = {"achieved": "skipped", "reason": "n2 fsynced nothing for 4 s", "injected_ns": -1}
    power = {"card": evidence.faults[0]["card"] | {"kind": "power"}}
    evidence.faults.append(evidence.faults[0] | skipped | power)
    evidence.demands = replace(evidence.demands, nemesis="partition, power, disk")
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID, verdict.reason
    assert verdict.details["never_in_force"] == [
        {"kind": "disk", "dealt": 0, "reasons": []},
        {"kind": "power", "dealt": 1, "reasons": ["n2 fsynced nothing for 4 s"]},
    ]


@pytest.mark.parametrize("nemesis", ["partition", "schedule", ""])
def test_no_kind_is_missed_that_was_in_force_or_not_ordered(nemesis: str, tmp_path: Path) -> None:
    evidence = run()
    evidence.demands = replace(evidence.demands, nemesis=nemesis)
    assert judged(evidence, tmp_path).details["never_in_force"] == []
