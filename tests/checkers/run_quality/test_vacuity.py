"""Was it a real test?  Each criterion missed on purpose, and what is not demanded of a subject that has it not.

Shares of a span from sums that nodes measured, and what they let a report say of the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from toy_quorum import Evidence, Quorum, measured

from checkers.base.stored_run import Demands
from checkers.base.verdict import Validity, Verdict
from checkers.record.header_and_outcome import ProcessorSums, RunOutcome
from checkers.run_quality.processor_time import Shares, busy_in_words, shares_between
from checkers.run_quality.vacuity import CALLING_NS, about_the_harness
from checkers.run_quality.waivers import WAIVABLE


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
    quorum.pass_time(CALLING_NS)
    quorum.heal()
    quorum.read_all()
    return quorum.evidence()


def judged(evidence: Evidence, folder: Path) -> Verdict:
    return evidence.judge(folder, "vacuity")["vacuity"]


def main_of(evidence: Evidence) -> dict[str, Any]:
    """The main phase."""
    return next(phase for phase in evidence.outcome["phases"] if phase["name"] == "main")


def in_order(evidence: Evidence) -> Evidence:
    """Number the rows of the history anew, in the order of their times."""
    rows = sorted(evidence.history, key=lambda row: row["time_ns"])
    evidence.history = [row | {"index": index} for index, row in enumerate(rows)]
    return evidence


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


def test_the_last_role_of_one_moment_counts(tmp_path: Path) -> None:
    """On virtual time a node may campaign and win at once."""
    at_once = run()
    for node, rows in at_once.traces.items():
        leads = [row for row in rows if row["event"] == "role" and row["role"] == "leader"]
        rows += [row | {"role": "candidate"} for row in leads for _ in range(3)]
        rows.sort(key=lambda row: (row["seq"], row["role"] == "leader"))
        at_once.traces[node] = [row | {"seq": seq} for seq, row in enumerate(rows)]
    counted = figure(judged(at_once, tmp_path), "operations answered by a deposed leader")
    assert counted["value"] == 1


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


def an_empty_trace(e: Evidence) -> None:
    e.traces["n4"].clear()


def a_node_without_final_log(e: Evidence) -> None:
    e.copies[-1]["error"] = "byte 9: a batch of magic 7"


def interrupted(e: Evidence) -> None:
    e.outcome["interrupted"] = True


def test_the_reason_names_the_first_fault_that_was_not_in_force_and_why(tmp_path: Path) -> None:
    evidence = run()
    not_achieved(evidence)
    shortfall = judged(evidence, tmp_path).reason.partition("faults in force, or skipped for a stated reason: ")[2]
    assert "n1>n2" in shortfall.partition("(")[2].partition(")")[0]


@pytest.mark.parametrize(
    ("spoil", "criterion"),
    [
        (no_faults, "faults installed"),
        (not_achieved, "faults in force, or skipped for a stated reason"),
        (never_measured, "faults in force, or skipped for a stated reason"),
        (skipped_without_reason, "faults in force, or skipped for a stated reason"),
        (no_election, "elections won under a fault"),
        (nothing_in_faults, "share of ok operations in faults"),
        (no_ok_write_in_faults, "ok writes in faults"),
        (no_concurrency, "keys with concurrency"),
        (a_key_without_final_read, "keys read at the end"),
        (a_node_without_trace, "nodes with a trace"),
        (an_empty_trace, "nodes with a trace"),
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


def test_what_a_subject_has_not_got_is_not_demanded(tmp_path: Path) -> None:
    evidence = run()
    evidence.demands = Demands()
    evidence.traces, evidence.logs, evidence.copies, evidence.faults = {}, {}, [], []
    assert judged(evidence, tmp_path).validity is Validity.VALID


def test_a_slow_harness_is_said_and_does_not_decide(tmp_path: Path) -> None:
    evidence = run()
    evidence.outcome |= {"loop_stalls": [{"time_ns": 1, "stall_ms": 900.0}], "steal_s": {"n1": 3.5}}
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is Validity.VALID
    unmet = {c["name"] for c in verdict.details["criteria"] if not c["met"]}
    assert unmet == {"harness kept up", "nodes had their CPU"}


STOPPED = {"time_ns": 7_000_000_000, "checker": "election-safety", "summary": "two leaders"}


@pytest.mark.parametrize(
    ("ends_early", "stopped", "expected"),
    [
        (True, {"stopped": STOPPED}, Validity.NOT_APPLICABLE),
        (True, {}, Validity.UNKNOWN),
        (False, {"stopped": STOPPED}, Validity.UNKNOWN),
    ],
)
def test_of_a_run_that_was_to_end_early_and_did_nothing_is_demanded(
    tmp_path: Path, ends_early: bool, stopped: dict[str, Any], expected: Validity
) -> None:
    evidence = run()
    evidence.faults.clear()
    evidence.demands = replace(evidence.demands, ends_early=ends_early, rate_hz=200.0, time_limit_s=40.0)
    evidence.outcome |= stopped
    verdict = judged(evidence, tmp_path)
    assert verdict.validity is expected
    if expected is Validity.NOT_APPLICABLE:
        assert verdict.reason == "the run ended 7.0 s after it began, when election-safety was violated"
        assert not any(criterion["demanded"] for criterion in verdict.details["criteria"])


def test_what_is_waived_by_name_is_shown_and_not_demanded(tmp_path: Path) -> None:
    evidence = run()
    no_election(evidence)
    assert judged(evidence, tmp_path / "demanded").validity is Validity.UNKNOWN
    evidence.demands = replace(evidence.demands, waived=("elections", "rate"))
    verdict = judged(evidence, tmp_path / "waived")
    assert verdict.validity is Validity.VALID, verdict.reason
    assert not figure(verdict, "elections won under a fault")["demanded"]
    elections, rate = verdict.details["waived"]
    assert elections["name"] == "elections" and "got 0, wanted at least 1" in elections["shortfall"]
    assert rate == {"name": "rate", "shortfall": ""}
    evidence.faults.clear()
    assert judged(evidence, tmp_path / "no faults").validity is Validity.UNKNOWN, "that there was a fault at all stays"


def test_a_schedule_of_short_faults_demands_no_share_of_answers_in_them(tmp_path: Path) -> None:
    """A leader that is cut off for 0.4 s of a minute."""
    evidence = run()
    nothing_in_faults(evidence)
    main = main_of(evidence)
    begin = main["end_ns"] + 30_000_000_000
    main["end_ns"] += 60_000_000_000
    evidence.faults[0] |= {
        "injected_ns": begin,
        "heal_ordered_ns": begin + 400_000_000,
        "healed_ns": begin + 400_000_000,
    }
    of_a_deck = judged(evidence, tmp_path / "deck")
    assert {"share of ok operations in faults", "ok writes in faults"} <= {
        c["name"] for c in of_a_deck.details["criteria"] if c["demanded"] and not c["met"]
    }
    evidence.demands = replace(evidence.demands, nemesis="schedule")
    verdict = judged(evidence, tmp_path / "schedule")
    for name in ("share of ok operations in faults", "ok writes in faults", "elections won under a fault"):
        assert figure(verdict, name)["met"], name
    evidence.faults[0] |= {"heal_ordered_ns": begin + 2_900_000_000, "healed_ns": begin + 2_900_000_000}
    longer = judged(evidence, tmp_path / "longer")
    least = figure(longer, "share of ok operations in faults")["least"]
    assert 0.01 < least < 0.03, "half of the share of the time"


def test_every_demand_that_can_be_waived_is_a_criterion(tmp_path: Path) -> None:
    """Over these runs every name occurs: a waiver of a name that no criterion has would change nothing."""
    evidence = run()
    keys = {"servers": ("n1", "n2", "n3"), "each_server_serves": True, "each_server_read_at_end": True, "rate_hz": 1.0}
    evidence.demands = replace(evidence.demands, keys=("k0",), **keys)
    main = main_of(evidence)
    main["end_ns"] += 60_000_000_000
    for second in range(60):
        evidence.answer("n1", main["end_ns"] - second * 1_000_000_000)
    in_order(evidence)
    seen = {c["name"] for c in judged(evidence, tmp_path).details["criteria"]}
    named = {criterion for covers in WAIVABLE.values() for criterion in covers}
    assert named - seen <= {"stretches with an ok answer", "faults with an ok write"}, named - seen


S = 1_000_000_000


def sums(*rows: tuple[float, float, float]) -> tuple[ProcessorSums, ...]:
    return tuple(ProcessorSums(int(t * S), p, w, 0.0) for t, p, w in rows)


def test_a_span_is_measured_from_the_sample_before_it_to_the_one_after() -> None:
    outcome = RunOutcome(processor={"n1": sums((0, 5, 1), (2, 6, 1), (4, 8, 2), (6, 8, 2))})
    assert shares_between(outcome, 2 * S, 4 * S) == {"n1": Shares(1.0, 0.5)}
    assert shares_between(outcome, 3 * S, 5 * S) == {"n1": Shares(0.5, 0.25)}


def test_a_server_that_was_started_again_begins_at_zero() -> None:
    outcome = RunOutcome(processor={"n1": sums((0, 0, 9), (2, 0, 9.5), (4, 0, 0.1), (6, 0, 0.6))})
    assert shares_between(outcome, 0, 6 * S)["n1"].waited == 1.0 / 6


def test_what_was_not_measured_is_not_known() -> None:
    only_pressure = ProcessorSums(0, 1.0), ProcessorSums(2 * S, 2.0)
    assert shares_between(RunOutcome(processor={"c1": only_pressure}), 0, 2 * S) == {"c1": Shares(0.5, None)}
    assert shares_between(RunOutcome(processor={"c1": only_pressure[:1]}), 0, 2 * S) == {}
    assert shares_between(RunOutcome(), 0, 2 * S) == {}


def test_a_busy_machine_is_named_by_its_measurements() -> None:
    shares = {"n1": Shares(0.93, 0.02), "n2": Shares(0.93, 0.31)}
    assert busy_in_words(shares) == [
        "processes waited for a processor for 93% of the time",
        "the server of n2 waited for a processor for 31% of the time",
    ]
    (of_threads,) = busy_in_words({"n1": Shares(0.4, 4.12)})
    assert of_threads == "4.1 threads of the server of n1 waited for a processor at a time", "no share is above 100%"
    assert busy_in_words({"n1": Shares(0.4, 0.02), "c1": Shares(0.4)}) == []


def test_nodes_that_waited_did_not_have_their_processor_whatever_was_stolen() -> None:
    facts = RunOutcome(steal_s={"n1": 0.0}, processor={"n1": sums((0, 0, 0), (10, 9.8, 0.2))})
    of_cpu = about_the_harness(facts, Demands(nodes=True), (0, 10 * S))[-1]
    assert (of_cpu.name, of_cpu.met, of_cpu.demanded) == ("nodes had their CPU", False, False)
    assert "98% of the time" in of_cpu.words
    unmeasured = about_the_harness(RunOutcome(steal_s={"n1": 0.0}), Demands(nodes=True), (0, 10 * S))[-1]
    assert unmeasured.met and "was not measured" in unmeasured.words
