"""Every anomaly by name: in the smallest history that has it, and hidden in a long one that has no other.

Histories that could not show a violation, because nothing was written or nothing was read, are unknown.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from edn_files import read_any

from bench.instruments.transaction_histories import LISTS, REGISTERS, history, smallest
from checkers.base.checker import Budget, Part
from checkers.base.columns import events_to_table
from checkers.base.history import Event, MalformedHistory, Type
from checkers.base.verdict import VIOLATIONS_BY_KIND, Validity, Verdict
from checkers.transactions import checker
from checkers.transactions.anomalies import MODELS, ruled_out, strongest
from checkers.transactions.checker import read_file
from checkers.transactions.judge import judge_transactions
from checkers.transactions.read import Model
from checkers.transactions.tape import Tape, at_once, micro_operations, one_after_another


def judge(events: list[Event], model: Model, **options: str) -> Verdict:
    return judge_transactions(events, model, **options)  # type: ignore[arg-type]


CASES = [("list-append", name) for name in LISTS] + [("rw-register", name) for name in REGISTERS]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_the_smallest_history_of_each_anomaly(model: Model, name: str) -> None:
    texts, together, others = smallest(model, name)
    verdict = judge(history(texts, together), model)
    assert verdict.validity is Validity.INVALID
    assert {name} <= set(verdict.details["anomalies"]) <= {name} | others
    assert name in {w.kind for w in verdict.witnesses}


@pytest.mark.parametrize("model", ["list-append", "rw-register"])
def test_the_order_of_one_process_counts_as_process(model: Model) -> None:
    reads = ("ax1", "rx", "rx1") if model == "list-append" else ("wx1", "=x")
    tape = Tape()
    for text in reads:
        tape.run(7, text)
    verdict = judge(tape.events, model)
    assert list(verdict.details["anomalies"]) == ["G-single-process"]
    assert "strong-session-serializable" in verdict.details["ruled_out"]
    assert "serializable" not in verdict.details["ruled_out"]
    assert "process 7 ran" in verdict.witnesses[0].summary


@pytest.mark.parametrize(("model", "texts"), [("list-append", ("rx rx1", "ax1")), ("rw-register", ("=x =x1", "wx1"))])
def test_another_version_in_the_second_read_of_a_key_is_no_repeatable_read(
    model: Model, texts: tuple[str, ...]
) -> None:
    events = at_once(*texts)
    assert judge(events, model, consistency="read-committed").validity is Validity.VALID
    verdict = judge(events, model, consistency="repeatable-read")
    assert [w.kind for w in verdict.witnesses] == ["internal"]


PROCESSES: dict[str, tuple[str, ...]] = {
    "G0-process": ("+0ax1", "-0", "+0ax2", "-0", "+1rx21", "-1"),
    "G1c-process": ("+0rx1", "-0", "+0ax1", "-0"),
    "G-single-process": ("+0ax1", "-0", "+0rx", "-0", "+1rx1", "-1"),
    "G-nonadjacent-process": ("+0ax1", "+1ry1 rx", "+2ay1", "-0", "+0ry", "-1", "-2", "-0"),
    "G2-item-process": ("+1ax1 ry", "+0ay1", "-0", "+0rx", "-0", "-1"),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_each_class_by_the_order_of_a_process(name: str) -> None:
    """Strict serializability is out, and so is every strong session; without sessions nothing is wrong."""
    verdict = judge(Tape().script(*PROCESSES[name]).events, "list-append")
    assert list(verdict.details["anomalies"]) == [name]
    (witness,) = verdict.witnesses
    assert [e["edge"] for e in witness.facts["cycle"]].count("process") == 1
    assert all(model.startswith(("strong", "strict")) for model in witness.facts["rules_out"])
    assert witness.facts["violates"][0].startswith("strong-session-")
    apart, began = [], {}
    for e in Tape().script(*PROCESSES[name]).events:
        number = began.setdefault(e.process, e.index) if e.type is Type.INVOKE else began.pop(e.process)
        apart.append(replace(e, process=number))
    assert list(judge(apart, "list-append").details["anomalies"]) == [name.replace("process", "realtime")]


def test_each_edge_of_a_cycle_is_explained_in_words() -> None:
    (witness,) = judge(at_once("ax1 ay1", "rx1 ry", "ry1"), "list-append").witnesses
    assert "T1 appended 1 to x, which T2 read" in witness.summary
    assert "T2 read y as [], before T1 appended 1 to y" in witness.summary
    assert [edge["edge"] for edge in witness.facts["cycle"]] in (["rw", "wr"], ["wr", "rw"])
    assert [e["index"] for e in witness.events] == [0, 1, 3, 4]


@pytest.mark.parametrize(("model", "name"), CASES)
def test_facts_of_a_witness_are_what_pictures_are_drawn_from(model: Model, name: str) -> None:
    texts, together, _ = smallest(model, name)
    witness = next(w for w in judge(history(texts, together), model).witnesses if w.kind == name)
    transactions = witness.facts["transactions"]
    assert sorted(e["index"] for e in witness.events) == sorted(i for t in transactions.values() for i in t["events"])
    assert witness.facts["violates"][0] in witness.facts["rules_out"]
    assert witness.facts["expected"]
    assert all(sentence in witness.summary for sentence in witness.facts["why"])
    edges = witness.facts.get("cycle", [])
    for edge, following in zip(edges, edges[1:] + edges[:1], strict=True):
        assert set(edge) == {"from", "to", "edge", "key", "why"}
        assert edge["to"] == following["from"]
        assert {edge["from"], edge["to"]} <= set(transactions)
        assert edge["edge"] in ("ww", "wr", "rw", "process", "realtime")
        assert (edge["key"] in ("x", "y")) == (edge["edge"] in ("ww", "wr", "rw"))
        assert {edge["from"], edge["to"]} <= set(re.findall(r"T\d+", edge["why"]))


def test_a_long_cycle_is_cut_short_and_explained_again_by_real_time() -> None:
    """A late reader misses the first write; data alone leads from that write to the reader in ten small steps."""
    chain = ["ax1 am1"] + [f"rm{''.join(map(str, range(1, i)))} am{i}" for i in range(2, 10)]
    verdict = judge(one_after_another(*chain, "rm123456789 rx"), "list-append")
    assert next(iter(verdict.details["anomalies"])) == "G-single"
    shortest = min(verdict.witnesses, key=lambda w: w.facts["length"])
    assert shortest.facts["length"] == 2


def test_an_append_that_is_missing_before_a_later_one_of_its_transaction() -> None:
    assert "reordered-appends" in judge(at_once("ax1 ax2", "rx2"), "list-append").details["anomalies"]
    assert "reordered-appends" in judge(at_once("?ax1 ax2", "rx2"), "list-append").details["anomalies"]


def test_an_unknown_transaction_counts_once_an_append_of_it_was_seen() -> None:
    assert judge(at_once("?ax1 ay1", "rx1 ry"), "list-append").details["anomalies"] == {"G-single": 1}
    assert judge(at_once("?ax1 ay1", "rx ry", "az1"), "list-append").validity is Validity.VALID
    assert judge(one_after_another("rx", "rx1"), "list-append").details["anomalies"] == {"unwritten-read": 1}


def test_a_cycle_of_writes_through_an_unknown_transaction_does_not_rule_out_dirty_reads() -> None:
    """T1 either committed, and its writes are interleaved, or it aborted and was read all the same."""
    sure = judge(at_once("ax1 ay1", "ax2 ay2", "rx12 ry21"), "list-append")
    assert "read-uncommitted" in sure.details["ruled_out"]
    unsure = judge(at_once("?ax1 ay1", "ax2 ay2", "rx12 ry21"), "list-append")
    assert list(unsure.details["anomalies"]) == ["G1c"]
    assert "read-uncommitted" not in unsure.details["ruled_out"]


def test_answers_of_failed_and_unknown_transactions_are_no_evidence() -> None:
    assert judge(at_once("ax1", "!rx9", "?rx9", "rx1"), "list-append").validity is Validity.VALID
    assert judge(at_once("wx1", "!=x9", "?=x9", "=x1"), "rw-register").validity is Validity.VALID


def test_an_unknown_transaction_may_happen_long_after_it_gave_up() -> None:
    tape = Tape()
    tape.run(0, "ax1", Type.INFO)
    tape.run(1, "rx").run(1, "rx1")
    assert judge(tape.events, "list-append").validity is Validity.VALID


def test_a_transaction_that_never_completed_is_of_unknown_outcome() -> None:
    tape = Tape()
    tape.invoke(0, micro_operations("ax1"))
    tape.run(1, "rx1")
    assert judge(tape.events, "list-append").validity is Validity.VALID


def test_a_key_with_a_value_written_twice_is_judged_by_trying_both_writers() -> None:
    assert judge(at_once("ax1", "ax1", "rx1", "ay1 ry1"), "list-append").validity is Validity.VALID
    verdict = judge(one_after_another("ax1", "ax1", "rx1"), "list-append")
    assert verdict.validity is Validity.INVALID
    assert "no choice of the writes that their reads show has an order" in verdict.witnesses[0].summary


def test_anomalies_that_the_demanded_model_allows_do_not_make_it_invalid() -> None:
    skew = at_once("rx ay1", "ry ax1")
    verdict = judge(skew, "list-append", consistency="snapshot-isolation")
    assert verdict.validity is Validity.VALID
    assert verdict.details["allowed"] == ["G2-item"]
    assert judge(skew, "list-append", consistency="repeatable-read").validity is Validity.INVALID
    with pytest.raises(ValueError, match="is no consistency model"):
        judge(skew, "list-append", consistency="best-effort")


def test_real_time_orders_blind_writes_of_registers_where_strict_serializability_is_demanded() -> None:
    """A reader, open all the time, sees the older x and the newer y: only real time tells which x is the older one."""
    events = Tape().script("+0=x1 =y1", "+1wx1", "-1", "+2wx2 wy1", "-2", "-0").events
    assert judge(events, "rw-register", consistency="serializable").validity is Validity.VALID
    verdict = judge(events, "rw-register")
    assert list(verdict.details["anomalies"]) == ["G-single-realtime"]
    assert verdict.details["ruled_out"] == ["strict-serializable"]
    assert verdict.details["violates"] == ["strict-serializable"]
    [witness] = verdict.witnesses
    assert witness.facts["assumes"] == "strict-serializable"
    assert "T2 met x as 1, and T3 met x as 2 after T2 had completed" in witness.summary


@pytest.mark.parametrize("processes", [1, 2])
def test_a_register_that_goes_back_is_seen_by_session_and_by_real_time(processes: int) -> None:
    texts = ("wx1", "wx2", "=x2", "=x1")
    events = one_after_another(*texts)
    if processes == 1:
        events = [replace(e, process=0) for e in events]
    strict = judge(events, "rw-register")
    assert strict.validity is Validity.INVALID
    assert strict.details["ruled_out"] == ["strict-serializable"]
    session = judge(events, "rw-register", consistency="strong-session-serializable")
    expected = Validity.INVALID if processes == 1 else Validity.VALID
    assert session.validity is expected
    assert judge(events, "rw-register", consistency="serializable").validity is Validity.VALID


def test_weaker_models_conclude_less_from_time() -> None:
    """A stale read after two writes: real time orders the writes under every strong model, the read under some."""
    stale = one_after_another("wx1", "wx2", "=x1")
    for base in ("read-uncommitted", "read-committed"):
        assert judge(stale, "rw-register", consistency=f"strong-{base}").validity is Validity.VALID
    for base in ("repeatable-read", "snapshot-isolation"):
        verdict = judge(stale, "rw-register", consistency=f"strong-{base}")
        assert verdict.validity is Validity.INVALID
        assert f"strong-{base}" in verdict.details["ruled_out"]
        assert "read-committed" not in verdict.details["ruled_out"]


SECOND_READS: dict[str, tuple[Model, str, list[Event], str]] = {
    "a circle of lists": ("list-append", "read-committed", at_once("ax1 ry ry1", "ay1 rx1"), "G1c"),
    "a circle of registers": ("rw-register", "read-committed", at_once("wx1 =y =y1", "wy1 =x1"), "G1c"),
    "a list from the future": (
        "list-append",
        "strong-read-committed",
        one_after_another("rx rx1", "ax1"),
        "G1c-realtime",
    ),
    "a register from the future": (
        "rw-register",
        "strong-read-committed",
        one_after_another("=x =x1", "wx1"),
        "G1c-realtime",
    ),
}


@pytest.mark.parametrize("case", SECOND_READS)
def test_a_second_read_of_a_key_is_a_dependency_too(case: str) -> None:
    model, consistency, events, name = SECOND_READS[case]
    verdict = judge(events, model, consistency=consistency)
    assert verdict.validity is Validity.INVALID
    assert list(verdict.details[VIOLATIONS_BY_KIND]) == [name]


def test_a_budget_too_small_is_unknown_and_says_so() -> None:
    events = at_once("ax1", "rx1")
    assert "steps" in judge_transactions(events, "list-append", Budget(steps=3)).reason
    assert "bytes" in judge_transactions(events, "list-append", Budget(size_bytes=3)).reason
    assert judge(at_once("!ax1"), "list-append").validity is Validity.UNKNOWN


def test_null_is_an_element_of_a_list_and_no_value_of_a_register(tmp_path: Path) -> None:
    tape = Tape()
    for process, (appended, read) in enumerate([(["append", "x", None], ["r", "x", []]), (["r", "x", [None]], None)]):
        steps = [step for step in (read, appended) if step is not None]
        tape.invoke(process, steps)
        tape.record(process, Type.OK, steps)
    assert judge(tape.events, "list-append").validity is Validity.VALID
    written = Tape()
    written.invoke(0, [["w", "x", None]])
    written.record(0, Type.OK, [["w", "x", None]])
    pq.write_table(events_to_table(written.events), tmp_path / "history.parquet")
    refusal = "index 1: a write of key 'x' needs a value"
    with pytest.raises(MalformedHistory, match=refusal):
        judge(written.events, "rw-register")
    with pytest.raises(MalformedHistory, match=refusal):
        read_file(str(tmp_path / "history.parquet"), "rw-register")


def test_models_and_what_rules_them_out() -> None:
    assert strongest([]) == ["strict-serializable"]
    assert ruled_out([]) == []
    assert set(ruled_out(["G0"])) == set(MODELS)
    assert strongest(ruled_out(["G2-item"])) == ["strong-snapshot-isolation"]
    assert ruled_out(["G-single-realtime"]) == [
        "strong-repeatable-read",
        "strong-snapshot-isolation",
        "strict-serializable",
    ]


ELLE = Path(__file__).parents[4] / "shared" / "data" / "histories" / "elle"
needs_elle = pytest.mark.skipif(not ELLE.is_dir(), reason="the recorded transactional histories are not here")


@needs_elle
def test_the_example_of_the_paper_is_not_serializable() -> None:
    """By hand.  T1 to T4 in the order of the file; the lists read give the orders of versions

        253: 1 3 4 (T1)      255: 2 3 4 5 (T1), 8 (T2)      256: 1 2 (T1), 4 (T3), and 3 (T4), which no transaction read

    and so 3 stands after 4: T3 read all of 256 that was there, [1 2 4].  250 is T4's alone.  Dependencies:

        T1 -wr-> T2, T3, T4   253 as [1 3 4]                   T1 -ww-> T2   255: 8 after 5
        T2 -wr-> T3           255 as [2 3 4 5 8]               T1 -ww-> T3   256: 4 after 2
        T4 -rw-> T2           255 as [2 3 4 5], and 8 next     T3 -ww-> T4   256: 3 after 4

    Nothing leads into T1, and T4 -rw-> T2 is all that leads out of T4.  So the only cycle is T2, T3, T4: one rw, which
    is G-single.  A G1c would have to do without an rw, and there is no cycle without this one; nor is there a G0.
    """
    verdict = judge(read_any(ELLE / "paper-example.edn"), "list-append")
    assert "serializable" in verdict.details["ruled_out"]
    assert list(verdict.details["anomalies"]) == ["G-single"]
    assert [edge["edge"] for edge in verdict.witnesses[0].facts["cycle"]] == ["wr", "ww", "rw"]


@needs_elle
def test_snapshot_isolation_without_serializability() -> None:
    verdict = judge(read_any(ELLE / "si-without-g-single.edn"), "list-append")
    assert "serializable" in verdict.details["ruled_out"]
    assert "snapshot-isolation" not in verdict.details["ruled_out"]


def test_a_list_that_shows_an_element_twice_counts_also_if_it_is_not_the_longest() -> None:
    """At read-uncommitted lists may contradict one another, but no append stands in a list twice."""
    events = one_after_another("ax1", "ax2", "ax3", "rx123", "rx121")
    verdict = judge_transactions(events, "list-append", consistency="read-uncommitted")
    assert verdict.validity is Validity.INVALID
    assert verdict.details["anomalies"] == {"duplicate-elements": 1, "incompatible-order": 1}


BY_LONGEST = {
    "G0": ("ax1 ay1", "ax2 ay2", "rx12", "rx21", "ry21"),
    "G1c": ("ax1 ry1", "ay1 rx1", "ax2", "rx12", "rx21"),
    "G-single": ("ax1 ay1", "rx1 ry", "ax2", "rx12", "rx21", "ry1"),
    "G2-item": ("ax1", "ax2", "ax3 ry", "ay1 rx21", "rx12", "rx123", "ry1"),
}
"""Name of a cycle that needs key x, whose lists contradict each other -> a history that shows it."""


@pytest.mark.parametrize("name", BY_LONGEST)
def test_a_cycle_through_lists_that_contradict_each_other_is_named(name: str) -> None:
    verdict = judge_transactions(at_once(*BY_LONGEST[name]), "list-append")
    assert verdict.details["anomalies"].keys() >= {name, "incompatible-order"}
    witness = next(w for w in verdict.witnesses if w.kind == name)
    assert "the longest one counts as its order" in witness.summary
    assert [edge["key"] for edge in witness.facts["cycle"]].count("x") >= 1
    assert not any(model.endswith("read-uncommitted") for model in verdict.details["ruled_out"])
    assert "read-uncommitted" not in witness.facts["rules_out"]


def test_a_list_that_contradicts_the_longest_one_may_end_with_an_element_beside_it() -> None:
    """The list [2] ends with an element that the longest list lacks, so nothing is known to follow it."""
    verdict = judge_transactions(at_once("ax1 ry", "ax3", "ax2", "ay1 rx2", "rx13", "ry1"), "list-append")
    assert verdict.details["anomalies"] == {"incompatible-order": 1}


def test_a_later_read_without_an_acknowledged_append_is_named_first() -> None:
    events = one_after_another("ax1", "ax2", "rx12", "ax3", "rx13")
    [witness] = [w for w in judge_transactions(events, "list-append").witnesses if w.kind == "incompatible-order"]
    assert (
        "Transaction T1 appended 2 to x and was acknowledged, but T3, invoked later, read the list without it."
        in witness.summary
    )
    assert witness.facts["key"] == "x"


SAME_BUT = "list is the same as far as both go, but lacks"


@pytest.mark.parametrize(
    ("reads", "words"),
    [
        (("rx123", "rx1345"), f"T1 read x as [1, 2, 3] and T2 read x as [1, 3, 4, 5]: the second {SAME_BUT} 2"),
        (("rx13", "rx1234"), f"T1 read x as [1, 3] and T2 read x as [1, 2, 3, 4]: the first {SAME_BUT} 2"),
        (("rx12", "rx134"), "after 1 equal element neither list is a prefix of the other, so x had two histories"),
        (("rx132", "rx1234"), "after 1 equal element neither list is a prefix of the other, so x had two histories"),
        (("rx21", "rx123"), "[1, 2, 3]: neither list is a prefix of the other, so x had two histories"),
        (("rx124", "rx135"), "after 1 equal element neither list is a prefix of the other"),
    ],
)
def test_an_element_that_is_missing_is_told_from_another_order(reads: tuple[str, str], words: str) -> None:
    verdict = judge_transactions(at_once("ax1", "ax2", "ax3", "ax4", "ax5", "ax6", "ax7", *reads), "list-append")
    [witness] = [w for w in verdict.witnesses if w.kind == "incompatible-order"]
    assert words in witness.summary


NO_WRITE = "no write was acknowledged"
NO_READ = "no read was answered"

UNSHOWN: dict[str, tuple[Model, tuple[str, ...], str]] = {
    "an empty transaction": ("list-append", (" ",), NO_WRITE),
    "reads alone": ("list-append", ("rx", "ry"), NO_WRITE),
    "every append refused": ("list-append", ("!ax1", "rx", "!ay1 rx"), NO_WRITE),
    "every append unknown": ("list-append", ("?ax1", "rx"), NO_WRITE),
    "every write refused": ("rw-register", ("!wx1", "=x"), NO_WRITE),
    "every write unknown": ("rw-register", ("?wx1", "=x"), NO_WRITE),
    "appends alone": ("list-append", ("ax1", "ax2 ay1"), f"{NO_READ}, so nothing shows what became of 3 acknowledged"),
    "one write": ("rw-register", ("wx1",), f"{NO_READ}, so nothing shows what became of 1 acknowledged write"),
    "every read refused": ("list-append", ("ax1", "!rx", "?rx"), NO_READ),
}

SHOWN: dict[str, tuple[Model, tuple[str, ...], Validity]] = {
    "an unknown append that was read": ("list-append", ("?ax1", "rx1"), Validity.VALID),
    "an unknown write that was read": ("rw-register", ("?wx1", "=x1"), Validity.VALID),
    "a write, and a read of its key": ("rw-register", ("wx1", "=x"), Validity.VALID),
    "an append, and a read of another key": ("list-append", ("ax1", "ry"), Validity.VALID),
    "a failed append that was read": ("list-append", ("!ax1", "rx1"), Validity.INVALID),
    "an element that no one wrote": ("rw-register", ("=x1",), Validity.INVALID),
}


def judged(events: list[Event], model: Model, folder: Path) -> Verdict:
    path = folder / "history.parquet"
    pq.write_table(events_to_table(events), path)
    part = Part((str(path),), {"model": model, "consistency": "strict-serializable", "group": 0})
    return checker.judge(part, Budget())


@pytest.mark.parametrize("case", UNSHOWN)
def test_what_could_not_show_a_violation_is_unknown(case: str, tmp_path: Path) -> None:
    model, texts, words = UNSHOWN[case]
    verdict = judged(at_once(*texts), model, tmp_path)
    assert verdict.validity is Validity.UNKNOWN
    assert verdict.reason.startswith(words), verdict.reason


@pytest.mark.parametrize("case", SHOWN)
def test_what_could_show_a_violation_is_judged(case: str, tmp_path: Path) -> None:
    model, texts, validity = SHOWN[case]
    verdict = judged(at_once(*texts), model, tmp_path)
    assert verdict.validity is validity, verdict.reason
