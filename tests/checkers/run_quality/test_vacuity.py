"""Was it a real test?  Each criterion missed on purpose, and what is not demanded of a subject that has it not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_quorum import Evidence, Quorum, measured

from checkers.base.demands import Demands
from checkers.base.history import Type
from checkers.base.verdict import Validity, Verdict
from checkers.run_quality import minimums


def run() -> Evidence:
    """n1 leads, is cut off, n2 is elected under the fault and acknowledges writes; n1 answers once more; heal."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write("k0")
    quorum.write("k1")
    quorum.cut({"n1"})
    quorum.write("k0")
    quorum.elect("n2", {"n2", "n3", "n4", "n5"})
    quorum.replicate()
    quorum.write("k0")
    quorum.write("k1")
    quorum._event(900, 0, "k0", None, "", "read")
    quorum._event(900, 1, "k0", None, "n1", "read")
    quorum.heal()
    quorum.read_all()
    return quorum.evidence()


def judged(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, "vacuity")["vacuity"]


def figure(verdict: Verdict, name: str) -> dict[str, Any]:
    return next(c for c in verdict.details["criteria"] if c["name"] == name)


def test_a_real_test(tmp_path: Path) -> None:
    verdict = judged(run(), tmp_path)
    assert verdict.validity is Validity.VALID, verdict.reason
    keys = {"name", "value", "least", "met", "demanded", "words", "advice"}
    assert all(set(c) == keys for c in verdict.details["criteria"])
    assert figure(verdict, "elections won under a fault")["value"] == 1
    assert verdict.to_json()["details"]["criteria"]


def test_answers_of_a_deposed_leader_are_counted_and_not_demanded(tmp_path: Path) -> None:
    counted = figure(judged(run(), tmp_path), "operations answered by a deposed leader")
    assert (counted["value"], counted["demanded"], counted["met"]) == (1, False, True)
    assert "1 reads" in counted["words"]


def test_without_a_common_clock_only_what_the_harness_saw_is_counted(tmp_path: Path) -> None:
    """Traces of nodes with clocks of their own: elections count if the harness saw them, deposed leaders do not."""
    remote = run()
    remote.test["spec"]["backend"] = "ssh"
    for rows in remote.traces.values():
        for row in rows:
            row["time_ns"] += 10**15
    verdict = judged(remote, tmp_path / "seen")
    assert verdict.validity is Validity.VALID, verdict.reason
    assert figure(verdict, "elections won under a fault")["value"] == 1
    assert "operations answered by a deposed leader" not in {c["name"] for c in verdict.details["criteria"]}
    remote.outcome["leaders"] = remote.outcome["leaders"][:1]
    assert judged(remote, tmp_path / "unseen").validity is Validity.UNKNOWN


def no_faults(e: Evidence) -> None:
    e.faults.clear()


def not_achieved(e: Evidence) -> None:
    """The recorded word is "installed", but one measurement shows a beacon on a link that was ordered cut."""
    leaky = measured(e.faults[0], ["n1", "n2", "n3", "n4", "n5"])
    leaky["measured"][1]["links"] = dict(leaky["measured"][1]["links"]) | {"n1>n2": [60, 3]}
    e.faults.append(leaky)


def never_measured(e: Evidence) -> None:
    e.faults.append(dict(e.faults[0]) | {"measured": []})


def skipped_without_reason(e: Evidence) -> None:
    e.faults.append(dict(e.faults[0]) | {"achieved": "skipped", "reason": "", "injected_ns": -1})


def no_election(e: Evidence) -> None:
    e.outcome["leaders"] = e.outcome["leaders"][:1]
    for rows in e.traces.values():
        rows[:] = [r for r in rows if not (r["role"] == "leader" and r["epoch"] == 2)]


def nothing_in_faults(e: Evidence) -> None:
    e.faults[0] |= {"injected_ns": 10**12, "heal_ordered_ns": 10**12 + 1, "healed_ns": 10**12 + 1}


def no_ok_write_in_faults(e: Evidence) -> None:
    fault = e.faults[0]
    for row in e.history:
        if fault["injected_ns"] <= row["time_ns"] < fault["heal_ordered_ns"] and row["f"] == "write":
            row["f"] = "read"


def no_concurrency(e: Evidence) -> None:
    e.history = [r for r in e.history if r["process"] % 2 == 0 or r["f"] == "write"]


def a_key_without_final_read(e: Evidence) -> None:
    e.outcome["final_reads"]["k1"] = "timeout"


def a_node_without_trace(e: Evidence) -> None:
    del e.traces["n4"]


def a_node_without_final_log(e: Evidence) -> None:
    e.copies[-1]["error"] = "byte 9: a batch of magic 7"


def interrupted(e: Evidence) -> None:
    e.outcome["interrupted"] = True


@pytest.mark.parametrize(
    ("spoil", "criterion"),
    [
        (no_faults, "faults installed"),
        (not_achieved, "faults installed or rightly skipped"),
        (never_measured, "faults installed or rightly skipped"),
        (skipped_without_reason, "faults installed or rightly skipped"),
        (no_election, "elections won under a fault"),
        (nothing_in_faults, "share of ok operations in faults"),
        (no_ok_write_in_faults, "ok writes in faults"),
        (no_concurrency, "keys with concurrency"),
        (a_key_without_final_read, "keys read at the end"),
        (a_node_without_trace, "nodes with a trace"),
        (a_node_without_final_log, "nodes with a final log"),
        (interrupted, "ran to its end"),
    ],
)
def test_what_makes_a_run_vacuous(spoil: Callable[[Evidence], None], criterion: str, tmp_path: Path) -> None:
    evidence = run()
    spoil(evidence)
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.UNKNOWN
    assert criterion in verdict.reason
    assert not figure(verdict, criterion)["met"]


def test_a_fault_skipped_for_a_stated_reason_is_no_shortfall(tmp_path: Path) -> None:
    evidence = run()
    skipped = {"achieved": "skipped", "reason": "no node led for 5 s", "injected_ns": -1}
    evidence.faults.append(dict(evidence.faults[0]) | skipped)
    assert judged(evidence, tmp_path).validity is Validity.VALID


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


def test_what_a_subject_has_not_got_is_not_demanded(tmp_path: Path) -> None:
    evidence = run()
    evidence.demands = Demands()
    evidence.traces, evidence.logs, evidence.copies, evidence.faults = {}, {}, [], []
    assert judged(evidence, tmp_path).validity is Validity.VALID


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


def test_a_slow_harness_is_said_and_does_not_decide(tmp_path: Path) -> None:
    evidence = run()
    evidence.outcome |= {
        "loop_stalls": [{"time_ns": 1, "stall_ms": 900.0}],
        "steal_s": {"n1": 3.5},
    }
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID
    unmet = {c["name"] for c in verdict.details["criteria"] if not c["met"]}
    assert unmet == {"harness kept up", "nodes had their CPU"}


def test_a_run_over_its_data_budget_says_so(tmp_path: Path) -> None:
    evidence = run()
    evidence.faults[0]["over_budget"] = True
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID
    assert not figure(verdict, "data budget kept")["met"]
    assert "excused" in figure(verdict, "data budget kept")["words"]


def test_a_run_that_did_nearly_nothing_of_its_demands_is_unknown(tmp_path: Path) -> None:
    """209 ok operations of 8,000 scheduled were once a green run."""
    evidence = run()
    main = next(p for p in evidence.outcome["phases"] if p["name"] == "main")
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


def test_a_few_slow_seconds_between_dense_faults_do_not_say_that_the_rate_was_missed(tmp_path: Path) -> None:
    evidence = run()
    main = next(p for p in evidence.outcome["phases"] if p["name"] == "main")
    main["end_ns"] = evidence.faults[0]["healed_ns"] + 7_000_000_000
    invoked = sum(row["type"] == 0 and main["start_ns"] <= row["time_ns"] < main["end_ns"] for row in evidence.history)
    rate_hz = invoked / (main["end_ns"] - main["start_ns"]) * 1e9
    evidence.demands = replace(evidence.demands, rate_hz=rate_hz, time_limit_s=1.0)
    share = figure(judged(evidence, tmp_path / "busy"), "share of the scheduled rate")
    assert share["value"] == pytest.approx(1.0, abs=0.01) and share["met"]
    calm_hz = float(share["words"].split()[0])
    assert calm_hz < 0.8 * rate_hz
    evidence.demands = replace(evidence.demands, rate_hz=2 * rate_hz)
    assert not figure(judged(evidence, tmp_path / "slow"), "share of the scheduled rate")["met"]


def hung(rate_hz: float, ok_at_s: tuple[float, ...] = ()) -> Evidence:
    """After the fault the main phase lasts a minute more.  Clients invoke ten operations a second, and answers come at
    some seconds of that minute only."""
    evidence = run()
    main = next(p for p in evidence.outcome["phases"] if p["name"] == "main")
    fault = evidence.faults[0]
    main["end_ns"] = fault["healed_ns"] + 60 * SECOND
    like = next(row for row in evidence.history if (row["f"], row["type"]) == ("read", Type.OK))
    for tenth in range(590):
        at_ns = fault["healed_ns"] + SECOND + tenth * SECOND // 10
        answer = Type.OK if tenth / 10 in ok_at_s else Type.INFO
        for place, type_ in enumerate((Type.INVOKE, answer)):
            evidence.history.append(like | {"type": type_, "process": 950 + tenth, "time_ns": at_ns + place})
    evidence.history.sort(key=lambda row: row["time_ns"])
    evidence.history = [row | {"index": index} for index, row in enumerate(evidence.history)]
    evidence.demands = replace(evidence.demands, rate_hz=rate_hz, time_limit_s=1.0, op_timeout_s=2.0)
    return evidence


@pytest.mark.parametrize("rate_hz", [0.0, 10.0])
def test_a_system_that_hangs_after_its_first_answers_was_not_tested(rate_hz: float, tmp_path: Path) -> None:
    verdict = judged(hung(rate_hz, ok_at_s=(1.0, 2.0, 3.0)), tmp_path)
    assert verdict.validity is Validity.UNKNOWN
    shown = figure(verdict, "stretches with an ok answer")
    assert (shown["value"], shown["least"], shown["met"]) == (0, 10, False)
    assert "the first without one began" in shown["words"] and "stretches with an ok answer: 0" in verdict.reason


def test_answers_throughout_the_main_phase_are_a_test(tmp_path: Path) -> None:
    answering = judged(hung(0.0, ok_at_s=tuple(float(second) for second in range(0, 60, 3))), tmp_path)
    assert answering.validity is Validity.VALID, answering.reason
    assert figure(answering, "stretches with an ok answer")["value"] == 10


def test_a_lock_may_be_held_all_the_while(tmp_path: Path) -> None:
    locked = hung(0.0, ok_at_s=(1.0,))
    locked.demands = replace(locked.demands, ok_share=0.5)
    shown = figure(judged(locked, tmp_path), "stretches with an ok answer")
    assert (shown["met"], shown["demanded"]) == (False, False)


@pytest.mark.parametrize(("skips", "validity"), [(1, Validity.VALID), (2, Validity.UNKNOWN)])
def test_a_kind_of_fault_that_was_skipped_every_time_was_not_tested(
    skips: int, validity: Validity, tmp_path: Path
) -> None:
    evidence = run()
    skipped = {"achieved": "skipped", "reason": "n1 wrote nothing for 2 s", "injected_ns": -1}
    clock = {"card": evidence.faults[0]["card"] | {"kind": "clock"}}
    evidence.faults += [evidence.faults[0] | skipped | clock for _ in range(skips)]
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is validity
    if validity is Validity.UNKNOWN:
        assert "never in force: clock" in figure(verdict, "kinds of fault installed")["words"]


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
    assert not minimums.strikes_the_only_server({"nodes": [], "cut": one}, demands)
    assert minimums.strikes_the_only_server({"nodes": [], "cut": both}, demands)
    assert minimums.strikes_the_only_server({"nodes": ["n1"], "cut": []}, demands)
    assert not minimums.strikes_the_only_server({"nodes": ["n1"], "cut": []}, replace(demands, servers=("n1", "n2")))


def test_a_kind_of_fault_that_can_never_reach_the_system_was_not_tested(tmp_path: Path) -> None:
    evidence = run()
    skipped = {"achieved": "skipped", "reason": "clock faults cannot reach it", "injected_ns": -1, "impossible": True}
    evidence.faults.append(evidence.faults[0] | skipped | {"card": evidence.faults[0]["card"] | {"kind": "clock"}})
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.UNKNOWN
    assert "impossible here: clock" in figure(verdict, "kinds of fault installed")["words"]


def test_kinds_of_fault_that_were_never_dealt_are_named(tmp_path: Path) -> None:
    evidence = run()
    evidence.demands = replace(evidence.demands, nemesis="partition,clock,disk")
    shown = figure(judged(evidence, tmp_path), "kinds of fault installed")
    assert (shown["value"], shown["least"], shown["met"]) == (1, 1, True)
    assert shown["words"] == "of 1 kinds that were dealt; the time was too short for: clock, disk"


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


FINAL_NS = 10**12
SECOND = 1_000_000_000


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


def test_a_server_that_answers_before_recovery_alone_was_not_read_at_the_end(tmp_path: Path) -> None:
    evidence = each_serves()
    evidence.outcome["phases"][-1]["start_ns"] = FINAL_NS + 2
    verdict = judged(evidence, tmp_path)
    assert figure(verdict, "servers that answered clients")["met"]
    assert "not so: n1, n2, n3, n4, n5" in figure(verdict, "servers read at the end")["words"]


def test_a_server_of_which_one_key_was_not_read_at_the_end_may_have_lost_that_key(tmp_path: Path) -> None:
    evidence = each_serves()
    for row in evidence.history:
        if (row["node"], row["key"], row["process"]) == ("n5", "k0", 905):
            row["type"] = Type.INFO
    read = figure(judged(evidence, tmp_path), "servers read at the end")
    assert (read["value"], read["met"]) == (4, False)
    assert "a read of each of 2 keys at the end" in read["words"]
    assert "not so: n5" in read["words"]


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
    assert ("cas never was" in answered["words"]) is not met


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
    evidence.history.sort(key=lambda row: row["time_ns"])
    evidence.history = [row | {"index": index} for index, row in enumerate(evidence.history)]
    assert figure(judged(evidence, tmp_path), "ok writes in faults")["value"] == writes


def test_nothing_is_demanded_of_a_server_whose_disk_a_fault_damaged(tmp_path: Path) -> None:
    evidence = each_serves()
    evidence.history = [row for row in evidence.history if row["process"] != 905]
    damage = {"cut": [], "nodes": ["n5"], "settings": {"damages_data": True}, "leader": None}
    evidence.faults.append(evidence.faults[0] | damage | {"card": {"number": 7, "kind": "damage"}})
    assert figure(judged(evidence, tmp_path), "servers read at the end")["met"]


def test_a_node_whose_trace_is_empty_has_said_nothing(tmp_path: Path) -> None:
    evidence = run()
    evidence.traces["n4"].clear()
    verdict = judged(evidence, tmp_path)
    assert not figure(verdict, "nodes with a trace")["met"]


STOPPED = {"time_ns": 7_000_000_000, "checker": "election-safety", "summary": "two leaders"}


def test_of_a_run_that_ended_early_nothing_is_demanded(tmp_path: Path) -> None:
    evidence = run()
    evidence.faults.clear()
    evidence.demands = replace(evidence.demands, ends_early=True, rate_hz=200.0, time_limit_s=40.0)
    evidence.outcome["stopped"] = STOPPED
    verdict = judged(evidence, tmp_path / "stopped")
    assert verdict.validity is Validity.NOT_APPLICABLE
    assert verdict.reason == "the run ended 7.0 s after it began, when election-safety was violated"
    assert not any(criterion["demanded"] for criterion in verdict.details["criteria"])
    evidence.outcome["stopped"] = {}
    assert judged(evidence, tmp_path / "whole").validity is Validity.UNKNOWN


def test_a_run_that_was_not_to_end_early_is_held_to_its_whole_length(tmp_path: Path) -> None:
    evidence = run()
    evidence.faults.clear()
    evidence.outcome["stopped"] = STOPPED
    assert judged(evidence, tmp_path).validity is Validity.UNKNOWN
