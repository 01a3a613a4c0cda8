"""Deaths: what is a violation, what is unknown, and what was ordered or is excused by a fault.

Recovery: what the journal states of it, what proves it besides, and objects that cannot be read any more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_quorum import Evidence, Quorum, Row

from checkers.base.history import Type
from checkers.base.verdict import Validity, Verdict
from checkers.run_quality.faults_installed import ENDING_NS, LAST_LINES, LATE_ENDING_NS


@pytest.fixture
def evidence() -> Evidence:
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write()
    return quorum.evidence()


def death(node: str, **more: object) -> Row:
    return {"node": node, "time_ns": 5000, "status": -9, "ordered": False, "reason": "killed by signal 9"} | more


def up(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, "nodes-stay-up")["nodes-stay-up"]


def test_a_death_that_was_ordered_is_none(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["deaths"] = [death("n2", ordered=True)]
    verdict = up(evidence, tmp_path)
    assert verdict.validity is Validity.VALID and verdict.looked_at["processes that ended"] == 1


@pytest.mark.parametrize("status", [-9, 137])
def test_a_death_while_the_kernel_killed_for_want_of_memory_is_unknown(
    evidence: Evidence, tmp_path: Path, status: int
) -> None:
    evidence.outcome["deaths"] = [death("n3", status=status, oom_kills=1)]
    verdict = up(evidence, tmp_path / "alone")
    assert verdict.validity is Validity.UNKNOWN
    assert "the kernel's out-of-memory killer ended the server of n3" in verdict.reason
    assert "more memory or the run fewer nodes" in verdict.reason
    assert verdict.looked_at["of them unexpected"] == verdict.looked_at["excused by a fault"] == 0
    evidence.outcome["deaths"] += [death("n2")]
    assert [witness.facts["nodes"] for witness in up(evidence, tmp_path / "and another").witnesses] == [["n2"]]


@pytest.mark.parametrize("facts", [{"status": 70, "oom_kills": 1}, {"oom_kills": 0}, {}])
def test_a_death_that_the_kernel_did_not_cause_is_a_violation(
    evidence: Evidence, tmp_path: Path, facts: dict[str, int]
) -> None:
    evidence.outcome["deaths"] = [death("n3", **facts)]
    assert up(evidence, tmp_path).validity is Validity.INVALID


def test_one_witness_for_a_death_its_last_words_and_its_traceback(evidence: Evidence, tmp_path: Path) -> None:
    evidence.traces["n3"][-1] |= {"event": "fatal", "detail": "two leaders in epoch 4"}
    assert up(evidence, tmp_path / "fatal").validity is Validity.INVALID
    evidence.outcome["deaths"] = [death("n3"), {"node": "n3", "ordered": False, "reason": "a traceback"}]
    verdict = up(evidence, tmp_path)
    assert len(verdict.witnesses) == 1
    assert (
        verdict.witnesses[0].summary == "n3 died unexpectedly: two leaders in epoch 4; killed by signal 9; a traceback"
    )
    assert verdict.witnesses[0].rows[0]["event"] == "fatal"


@pytest.mark.parametrize(
    ("printed", "end"),
    [
        ("recovery start\nrolled back during recovery", "its output ends: rolled back during recovery"),
        (
            "thread 'main' panicked at src/main.rs:3:5:\nno quorum\nnote: run with `RUST_BACKTRACE=1`",
            "it printed: thread 'main' panicked at src/main.rs:3:5: no quorum",
        ),
    ],
)
def test_a_death_shows_what_the_server_printed_last(evidence: Evidence, tmp_path: Path, printed: str, end: str) -> None:
    evidence.outcome["deaths"] = [death("n3", status=70, reason="exited with status 70", excerpt=printed)]
    (witness,) = up(evidence, tmp_path).witnesses
    assert witness.kind == "node died" and witness.facts["nodes"] == ["n3"]
    assert "exited with status 70" in witness.summary and witness.summary.endswith(f"; {end}")
    assert printed in witness.facts["why"][-1] and witness.facts["excerpt"] == printed


def failing_disk(node: str, **more: object) -> Row:
    """The record of a fault that held from 1,000 to 9,000 ns, and was measured to do so."""
    ordered = {
        "held": {"states": {}, "values": {"works": [0, 0]}},
        "healed": {"states": {}, "values": {"works": [1, 1]}},
    }
    measured = [
        {"phase": "inject", "from_ns": 1000, "to_ns": 2000, "values": {"works": 0}},
        {"phase": "before heal", "from_ns": 8000, "to_ns": 8500, "values": {"works": 0}},
        {"phase": "heal", "from_ns": 9000, "to_ns": 9500, "values": {"works": 1}},
    ]
    times = {"injected_ns": 1000, "heal_ordered_ns": 8800, "healed_ns": 9000}
    card = {"number": 1, "kind": "disk", "name": "one-full", "at_s": 0, "heal_s": 1}
    settings = {"may_die": True}
    return (
        {"card": card, "nodes": [node], "settings": settings, "ordered": ordered, "measured": measured} | times | more
    )


def test_a_server_may_die_of_its_failing_disk_and_of_nothing_else(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["deaths"] = [death("n2"), {"node": "n2", "ordered": False, "reason": "FATAL: EIO", "time_ns": -1}]
    cases = {
        "its disk failed then": ([failing_disk("n2")], Validity.VALID),
        "no fault": ([], Validity.INVALID),
        "another disk failed": ([failing_disk("n1")], Validity.INVALID),
        "that fault kills no process": ([failing_disk("n2", settings={})], Validity.INVALID),
        "the fault was never measured": ([failing_disk("n2", measured=[])], Validity.UNKNOWN),
        "its order failed": ([failing_disk("n2", measured=[], injected_ns=-1)], Validity.UNKNOWN),
        "its heal is not proven": ([failing_disk("n2", measured=failing_disk("n2")["measured"][:2])], Validity.UNKNOWN),
        "it was skipped": ([failing_disk("n2", achieved="skipped", injected_ns=-1, reason="no")], Validity.INVALID),
        "it had met the error before the heal": ([failing_disk("n2", healed_ns=4000)], Validity.VALID),
    }
    for case, (records, expected) in cases.items():
        evidence.faults[:] = records
        assert up(evidence, tmp_path / case).validity is expected, case


@pytest.mark.parametrize(
    ("after_heal_ns", "expected"),
    [
        (ENDING_NS, Validity.VALID),
        (ENDING_NS + 1, Validity.UNKNOWN),
        (LATE_ENDING_NS, Validity.UNKNOWN),
        (LATE_ENDING_NS + 1, Validity.INVALID),
    ],
)
def test_a_server_that_met_an_error_may_take_a_moment_to_end(
    after_heal_ns: int, expected: Validity, evidence: Evidence, tmp_path: Path
) -> None:
    fault = failing_disk("n2")
    evidence.faults[:] = [fault]
    evidence.outcome["deaths"] = [death("n2", time_ns=fault["healed_ns"] + after_heal_ns)]
    assert up(evidence, tmp_path).validity is expected


def test_an_excuse_is_wider_by_the_error_of_the_nodes_clock(evidence: Evidence, tmp_path: Path) -> None:
    """A node that is another machine: its death may seem to lie beside the fault that caused it."""
    evidence.faults[:] = [failing_disk("n2")]
    evidence.outcome["deaths"] = [death("n2", time_ns=9_400 + LATE_ENDING_NS)]
    cases = {
        "one clock": ("docker", {}, Validity.INVALID),
        "measured well": ("ssh", {"n2": {"ahead_ns": 10**12, "error_ns": 399}}, Validity.INVALID),
        "measured roughly": ("ssh", {"n2": {"ahead_ns": 10**12, "error_ns": 400}}, Validity.UNKNOWN),
        "one machine, and no offset counts": ("docker", {"n2": {"ahead_ns": 0, "error_ns": 400}}, Validity.INVALID),
        "never measured": ("ssh", {"n1": {"ahead_ns": 0, "error_ns": 0}}, Validity.VALID),
    }
    for case, (backend, clocks, expected) in cases.items():
        evidence.test["spec"]["backend"] = backend
        evidence.test["clocks"] = clocks
        assert up(evidence, tmp_path / case).validity is expected, case


BOTH = {"may_die": True, "may_stay_down": True}


@pytest.mark.parametrize(
    ("s_after_heal", "stopped", "settings", "expected"),
    [
        (30, False, BOTH, Validity.VALID),
        (30, False, {"may_die": True}, Validity.INVALID),
        (1, True, BOTH, Validity.VALID),
        (20, True, BOTH, Validity.INVALID),
        (1, True, {"may_die": True}, Validity.INVALID),
    ],
)
def test_a_server_with_damaged_files_may_refuse_to_start(
    s_after_heal: int, stopped: bool, settings: dict[str, Any], expected: Validity, evidence: Evidence, tmp_path: Path
) -> None:
    """It ends by itself until the end of the run, or the next fault stops it before it has ended."""
    evidence.faults[:] = [failing_disk("n2", settings=settings)]
    at_ns = evidence.faults[0]["healed_ns"] + s_after_heal * 1_000_000_000
    refusal = {"node": "n2", "time_ns": -1, "status": 0, "ordered": False, "reason": "cannot start: CRC"}
    ends = [death("n2", time_ns=at_ns, ordered=True, status=-15), refusal] if stopped else [death("n2", time_ns=at_ns)]
    evidence.outcome["deaths"] = ends
    assert up(evidence, tmp_path).validity is expected


def test_who_has_no_nodes_cannot_lose_one(evidence: Evidence, tmp_path: Path) -> None:
    evidence.demands = replace(evidence.demands, nodes=False)
    verdicts = evidence.judge(tmp_path, "nodes-stay-up", "recovery")
    assert {v.validity for v in verdicts.values()} == {Validity.NOT_APPLICABLE}


def test_a_run_without_its_outcome_is_unknown(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome = {}
    verdicts = evidence.judge(tmp_path, "nodes-stay-up", "recovery")
    assert {v.validity for v in verdicts.values()} == {Validity.UNKNOWN}


def test_a_server_without_a_trace_that_ends_before_it_was_ever_ready_violates_nothing(
    evidence: Evidence, tmp_path: Path
) -> None:
    evidence.outcome |= {"set_up_failure": "the server of n2 is dead", "deaths": [death("n2")]}
    assert up(evidence, tmp_path / "traced").validity is Validity.INVALID
    evidence.demands = replace(evidence.demands, traces=False)
    verdict = up(evidence, tmp_path / "plain")
    assert verdict.validity is Validity.UNKNOWN
    assert "n2 died unexpectedly: killed by signal 9, before the system was ever ready" in verdict.reason


# Complaints


def complaint(reason: str, pid: int, lines_before_end: int = 0) -> Row:
    return death("n2", time_ns=-1, status=0, reason=reason, pid=pid, lines_before_end=lines_before_end)


@pytest.mark.parametrize(
    ("proven", "complaints", "expected"),
    [
        (True, [complaint("panic: write: EIO", 7)], Validity.VALID),
        (True, [complaint("panic: write: EIO", 7), complaint("goroutine 1", 7)], Validity.VALID),
        (True, [complaint("panic: write: EIO", 7, LAST_LINES)], Validity.VALID),
        (True, [complaint("data corrupted", 7, LAST_LINES + 1)], Validity.INVALID),
        (True, [complaint("data corrupted", 6)], Validity.INVALID),
        (True, [complaint("panic: write: EIO", 7), complaint("data corrupted", 8)], Validity.INVALID),
        (True, [complaint("data corrupted", -1)], Validity.UNKNOWN),
        (False, [], Validity.UNKNOWN),
        (False, [complaint("panic: write: EIO", 7)], Validity.UNKNOWN),
        (False, [complaint("data corrupted", 7, LAST_LINES + 1)], Validity.INVALID),
        (False, [complaint("data corrupted", 6)], Validity.INVALID),
    ],
)
def test_only_the_last_words_of_an_excused_death_are_excused(
    evidence: Evidence, tmp_path: Path, proven: bool, complaints: list[Row], expected: Validity
) -> None:
    """A fault that is not proven leaves open whether it excuses a death: a measurement may have come too late."""
    evidence.faults[:] = [failing_disk("n2")] if proven else [failing_disk("n2", measured=[])]
    evidence.outcome["deaths"] = [death("n2", pid=7), death("n2", pid=8, ordered=True), *complaints]
    verdict = up(evidence, tmp_path)
    assert verdict.validity is expected
    if expected is Validity.INVALID:
        assert verdict.witnesses[0].summary == "n2 complained in its log: data corrupted"
    if expected is Validity.UNKNOWN:
        assert ("data corrupted" if proven else "the fault is not proven") in verdict.reason


def test_a_complaint_of_an_unknown_process_is_a_violation_where_no_death_is_excused(
    evidence: Evidence, tmp_path: Path
) -> None:
    evidence.outcome["deaths"] = [complaint("data corrupted", -1)]
    assert up(evidence, tmp_path).validity is Validity.INVALID


def test_another_node_s_excused_death_excuses_nothing(evidence: Evidence, tmp_path: Path) -> None:
    evidence.faults[:] = [failing_disk("n1")]
    evidence.outcome["deaths"] = [death("n1", pid=7), complaint("panic: write: EIO", 7)]
    assert up(evidence, tmp_path).validity is Validity.INVALID


def test_a_sentence_names_a_few_reasons_and_counts_the_others(evidence: Evidence, tmp_path: Path) -> None:
    evidence.outcome["deaths"] = [complaint(f"corrupted: {words}", 7) for words in ("a", "b", "c", "d", "e")]
    summary = up(evidence, tmp_path).witnesses[0].summary
    assert summary == "n2 complained in its log: corrupted: a; corrupted: b; corrupted: c; and 2 more"


VALID, INVALID, UNKNOWN = Validity.VALID, Validity.INVALID, Validity.UNKNOWN
S = 1_000_000_000
SERVERS = ("n1", "n2", "n3", "n4", "n5")


@pytest.fixture
def of_recovery() -> Evidence:
    """A run with a partition, a limit of 60 s in its spec, and a phase of recovery that took 70 s."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.cut({"n5"})
    quorum.write()
    quorum.heal()
    found = quorum.evidence()
    found.demands = replace(found.demands, recovery_limit_s=60.0)
    found.outcome["phases"].append({"name": "recovery", "start_ns": S, "end_ns": 71 * S})
    return found


def recovery(of_recovery: Evidence, folder: Path, **stated: Any) -> Verdict:
    of_recovery.outcome["recovery"] |= stated
    return of_recovery.judge(folder, "recovery")["recovery"]


def looked_at(*nodes: str, dead: str = "") -> dict[str, list[str]]:
    return {node: ["process dead" if node == dead else "process running", "caught_up()"] for node in nodes}


def proof(verdict: str = "as ordered", *wrong: str, running: tuple[str, ...] = (), dead: tuple[str, ...] = ()) -> Row:
    states = dict.fromkeys(running, "running") | dict.fromkeys(dead, "dead")
    return {"verdict": verdict, "links": {}, "states": states, "wrong": list(wrong)}


def not_recovered(waiting_for: str, seconds: float = 60.1, **more: Any) -> dict[str, Any]:
    return {"recovered": False, "waiting_for": waiting_for, "seconds": seconds, "limit_s": 60.0, **more}


@pytest.mark.parametrize(
    ("stated", "expected", "words"),
    [
        ({}, VALID, ""),
        ({"seconds": 3}, VALID, ""),
        ({"seconds": 64.0}, VALID, ""),
        ({"seconds": 66.0, "limit_s": 60.0}, UNKNOWN, "the limit is 60 s"),
        ({"seconds": 90.0}, UNKNOWN, "the phase of recovery 70.0 s"),
        ({"seconds": None}, UNKNOWN, "the recovery time is not known"),
        ({"seconds": -1.0}, UNKNOWN, "recovery took -1.0 s"),
        ({"proof": None}, UNKNOWN, "no proof of the last heal"),
        ({"proof": proof("not as ordered")}, VALID, ""),  # a system may recover from half a heal
        ({"proof": proof("indeterminate")}, VALID, ""),
        ({"looked_at": looked_at(*SERVERS), "proof": proof(running=SERVERS)}, VALID, ""),
        ({"looked_at": looked_at(*SERVERS, dead="n5"), "proof": proof(running=SERVERS[:4])}, VALID, ""),
        ({"looked_at": looked_at(*SERVERS), "proof": proof()}, VALID, ""),
        ({"looked_at": {}, "proof": proof(running=SERVERS)}, VALID, ""),
        ({"looked_at": looked_at(*SERVERS[:3])}, UNKNOWN, "did not look at n4, n5"),
        (
            {"looked_at": looked_at(*SERVERS) | {"n5": ["process running"]}, "without_evidence": []},
            UNKNOWN,
            "only at the process of n5",
        ),
        (not_recovered("n4 is 12 entries behind"), INVALID, "n4 is 12 entries behind"),
        (not_recovered("a leader", proof=proof("not as ordered", "n1>n2 is cut")), UNKNOWN, "n1>n2 is cut"),
        (not_recovered("mine.py line 9: KeyError", not_known=True), UNKNOWN, "mine.py line 9: KeyError"),
        (not_recovered("n4", beats_sent={"n1": 0.97, "n2": 0.6}), INVALID, "n4"),
        (not_recovered("n4", beats_sent={"n1": 0.97, "n2": 0.1}), UNKNOWN, "n2 10%"),
        (not_recovered("n4", 3.0, beats_sent={"n1": 0.97, "n2": 0.1}), INVALID, "n4"),  # time would not have helped
    ],
)
def test_what_the_journal_states(
    of_recovery: Evidence, tmp_path: Path, stated: dict[str, Any], expected: Validity, words: str
) -> None:
    verdict = recovery(of_recovery, tmp_path, **stated)
    assert verdict.validity is expected, verdict.reason
    assert words in verdict.reason + "".join(witness.summary for witness in verdict.witnesses)


def test_without_faults_there_may_be_nothing_to_recover_from(of_recovery: Evidence, tmp_path: Path) -> None:
    of_recovery.faults.clear()
    assert recovery(of_recovery, tmp_path, needed=False).validity is Validity.NOT_APPLICABLE


def test_a_run_that_ended_before_recovery_is_unknown(of_recovery: Evidence, tmp_path: Path) -> None:
    of_recovery.outcome |= {"recovery": {}, "set_up_failure": "no leader within 60 s"}
    verdict = recovery(of_recovery, tmp_path)
    assert verdict.validity is UNKNOWN and "no leader within 60 s" in verdict.reason


def test_servers_that_end_again_after_the_heal_started_them_did_not_recover(
    of_recovery: Evidence, tmp_path: Path
) -> None:
    dead = ("n1", "n2", "n3")
    wrong = [f"{node} ordered running: it is dead" for node in dead]
    half = proof("not as ordered", *wrong, running=("n4", "n5"), dead=dead)
    stated = not_recovered("n1 and n2 and n3 died", proof=half)
    assert recovery(of_recovery, tmp_path / "no deaths are known", **stated).validity is UNKNOWN
    of_recovery.outcome["deaths"] = [{"node": node, "time_ns": 5000, "status": 1, "ordered": False} for node in dead]
    verdict = recovery(of_recovery, tmp_path / "by themselves")
    assert verdict.validity is INVALID
    assert "n1, n2, n3 ended after a start" in verdict.witnesses[0].facts["why"][0]
    half["wrong"] += ["n4>n5 is cut"]
    assert recovery(of_recovery, tmp_path / "and a link is cut").validity is UNKNOWN


def test_servers_that_the_kernel_killed_for_want_of_memory_show_nothing(of_recovery: Evidence, tmp_path: Path) -> None:
    of_recovery.outcome["deaths"] = [{"node": "n3", "time_ns": 5000, "status": -9, "ordered": False, "oom_kills": 1}]
    verdict = recovery(of_recovery, tmp_path, **not_recovered("n3"))
    assert verdict.validity is UNKNOWN and "out-of-memory killer" in verdict.reason


# Answers of clients


HEALED_NS = 10**15


def fault(healed_ns: int = HEALED_NS) -> Row:
    return {"card": {"number": 1}, "nodes": [], "injected_ns": 1, "healed_ns": healed_ns, "measured": []}


@pytest.fixture
def unseen(of_recovery: Evidence) -> Evidence:
    """A run of two servers, of which recovery saw only the process of n4."""
    of_recovery.demands = replace(of_recovery.demands, servers=("n1", "n4"))
    of_recovery.faults[:] = [fault()]
    of_recovery.outcome["phases"][-1] |= {"start_ns": HEALED_NS + 10, "end_ns": HEALED_NS + 9 * S}
    of_recovery.outcome["recovery"] |= {
        "looked_at": {"n1": ["process running", "caught_up()"], "n4": ["process running"]},
        "without_evidence": ["n4"],
    }
    return of_recovery


def test_a_server_of_which_only_the_process_was_seen_makes_it_unknown(unseen: Evidence, tmp_path: Path) -> None:
    unseen.answer("n4", HEALED_NS - 1)
    unseen.answer("n1", HEALED_NS + 1)
    unseen.answer("n4", HEALED_NS + 2, Type.FAIL)
    verdict = recovery(unseen, tmp_path)
    assert verdict.validity is UNKNOWN
    assert "n4 came back" in verdict.reason and "`caught_up`" in verdict.reason
    assert verdict.looked_at["evidence"] == "process running: n1, n4; caught_up(): n1"


@pytest.mark.parametrize(
    ("healed_ns", "ended_ns", "answered_ns", "expected"),
    [
        (HEALED_NS, None, HEALED_NS, VALID),
        (-1, None, HEALED_NS + 9, UNKNOWN),  # only recovery healed it, which begins after 10 ns
        (-1, None, HEALED_NS + 10, VALID),
        (None, None, HEALED_NS - 1, VALID),  # there was no fault
        (HEALED_NS, HEALED_NS + 5, HEALED_NS + 4, UNKNOWN),  # the server died after its answer
        (HEALED_NS, HEALED_NS + 10 * S, HEALED_NS + 4, VALID),  # the harness stopped it at the end
    ],
)
def test_an_answer_after_the_last_heal_and_the_last_death_is_evidence(
    unseen: Evidence, tmp_path: Path, healed_ns: int | None, ended_ns: int | None, answered_ns: int, expected: Validity
) -> None:
    unseen.faults[:] = [] if healed_ns is None else [fault(), fault(healed_ns)]
    unseen.outcome["deaths"] = [] if ended_ns is None else [{"node": "n4", "time_ns": ended_ns, "ordered": True}]
    unseen.answer("n4", answered_ns)
    verdict = recovery(unseen, tmp_path)
    assert verdict.validity is expected, verdict.reason
    assert str(verdict.looked_at["evidence"]).endswith("after the last heal: n4") == (expected is VALID)


@pytest.fixture
def locks(unseen: Evidence) -> Evidence:
    """A run of a workload without final reads, whose system states of each server that it came back."""
    unseen.demands = replace(unseen.demands, concurrency=2, final_reads=())
    unseen.outcome["recovery"] |= {"looked_at": looked_at("n1", "n4"), "without_evidence": []}
    return unseen


def test_without_final_reads_the_word_of_the_system_alone_shows_nothing(locks: Evidence, tmp_path: Path) -> None:
    locks.answer("n1", HEALED_NS - 1)
    locks.answer("n1", HEALED_NS + 1, Type.FAIL)
    verdict = recovery(locks, tmp_path / "none")
    assert verdict.validity is UNKNOWN and "no client got an answer after the last heal" in verdict.reason
    locks.answer("n4", HEALED_NS + 1)
    assert recovery(locks, tmp_path / "one").validity is VALID


def test_final_reads_or_no_fault_demand_no_such_answer(locks: Evidence, tmp_path: Path) -> None:
    demands, locks.demands = locks.demands, replace(locks.demands, final_reads=(("read", "k0"),))
    assert recovery(locks, tmp_path / "final reads").validity is VALID
    locks.demands = demands
    locks.faults.clear()
    assert recovery(locks, tmp_path / "no fault").validity is VALID


# Objects that cannot be read any more


@pytest.fixture
def gone() -> Evidence:
    """Both keys are written and read; after the heal every read is an error for a minute."""
    quorum = Quorum()
    quorum.elect("n1")
    quorum.write("k0")
    quorum.write("k1")
    quorum.read_all()
    quorum.cut({"n5"})
    quorum.heal()
    made = quorum.evidence()
    last_ns = max(row["time_ns"] for row in made.history)
    reading = {"name": "final reads", "start_ns": last_ns + 1, "end_ns": last_ns + 1 + int(60.1 * S)}
    made.outcome["phases"] = [p for p in made.outcome["phases"] if p["name"] != "final reads"] + [reading]
    made.outcome["recovery"] |= {"recovered": True, "seconds": 1.0, "limit_s": 60.0}
    made.outcome["final_reads"] = dict.fromkeys(("k0", "k1"), 'UndefinedTable: relation "kept" does not exist')
    return made


def test_a_system_in_which_nothing_can_be_read_any_more_has_not_come_back(gone: Evidence, tmp_path: Path) -> None:
    (witness,) = recovery(gone, tmp_path).witnesses
    assert witness.kind == "not readable any more"
    assert "no key could be read for 60 s after recovery" in witness.summary and "UndefinedTable" in witness.summary


def of_k1(error: str) -> Callable[[Evidence], None]:
    return lambda of_recovery: of_recovery.outcome["final_reads"].update(k1=error)


def too_short(of_recovery: Evidence) -> None:
    of_recovery.outcome["phases"][-1]["end_ns"] -= 10 * S


def not_healed(of_recovery: Evidence) -> None:
    of_recovery.outcome["recovery"]["proof"] = {"verdict": "indeterminate"}


def beyond_the_budget(of_recovery: Evidence) -> None:
    of_recovery.faults[0]["over_budget"] = True


def damaged(of_recovery: Evidence) -> None:
    of_recovery.faults[0] |= {"settings": {"damages_data": True}, "nodes": ["n5"]}


def never_read_before(of_recovery: Evidence) -> None:
    for row in of_recovery.history:
        if (row["f"], row["key"], row["type"]) == ("read", "k1", Type.OK):
            row["type"] = Type.INFO


def refused(error: str, ends: tuple[Type, ...] = (Type.FAIL, Type.FAIL)) -> Callable[[Evidence], None]:
    """k1 is read by a client in the final phase, and k0 is ok."""

    def change(of_recovery: Evidence) -> None:
        of_recovery.outcome["final_reads"] |= {"k0": "ok", "k1": error}
        began_ns = of_recovery.outcome["phases"][-1]["start_ns"]
        (blank, *_) = (row for row in of_recovery.history if (row["f"], row["key"]) == ("read", "k1"))
        for number, type_ in enumerate(each for end in ends for each in (Type.INVOKE, end)):
            row = {"index": len(of_recovery.history), "time_ns": began_ns + number, "type": type_, "value": None}
            row |= {"error": None if type_ is Type.INVOKE else error, "process": 1}
            of_recovery.history.append(blank | row)

    return change


@pytest.mark.parametrize(
    "otherwise",
    [
        of_k1("ok"),
        of_k1("not sent: the client is still starting"),
        of_k1("timeout"),
        too_short,
        not_healed,
        beyond_the_budget,
        damaged,
        never_read_before,
        *map(refused, ("timeout", "ConnectionResetError: reset", "not leader", "")),
        refused("stream not found", (Type.FAIL, Type.INFO)),
    ],
)
def test_nothing_is_claimed_where_something_else_may_be_the_cause(
    otherwise: Callable[[Evidence], None], gone: Evidence, tmp_path: Path
) -> None:
    otherwise(gone)
    assert recovery(gone, tmp_path).validity is not INVALID


def test_one_object_that_is_gone_is_named_with_its_error(gone: Evidence, tmp_path: Path) -> None:
    refused("stream not found")(gone)
    (witness,) = recovery(gone, tmp_path).witnesses
    assert witness.summary == (
        "k1 could not be read for 60 s after recovery: every read was answered with stream not found"
    )
