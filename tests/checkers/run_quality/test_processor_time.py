"""Shares of a span from sums that nodes measured, and what they let a report say of the machine."""

from __future__ import annotations

from checkers.base.stored_run import Demands
from checkers.record.header_and_outcome import ProcessorSums, RunOutcome
from checkers.run_quality.processor_time import Shares, busy_in_words, shares_between
from checkers.run_quality.vacuity import about_the_harness

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
