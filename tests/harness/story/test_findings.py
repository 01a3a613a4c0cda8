"""Kinds of violations, their order and their causes; and the fault that can have taken what was acknowledged."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from journals import write_header, write_journal
from recorded_runs import unpacked

from checkers.base.results import RESULTS, as_object
from checkers.base.stored_run import StoredRun
from checkers.catalog import CATALOG
from checkers.kafka_log.judge import ANOMALIES
from checkers.raft.rules import RULES
from checkers.record.faults import (
    DAMAGES_DATA,
    KEPT,
    MAY_DIE,
    OLDEST_LOST,
    Achieved,
    Card,
    Condition,
    FaultRecord,
    Measurement,
    Ordered,
)
from checkers.transactions.anomalies import WORST_FIRST
from harness.judge.judge_run import judge
from harness.lake.facts import facts_of, symptom_of_run
from harness.report.render import render
from harness.story.findings import (
    Leadership,
    cause_of_loss,
    explains,
    findings,
    groups,
    leadership_of,
    moment_ns,
    symptom_of,
    violation_count,
    violations_by_cause,
)
from harness.story.headline import first_step, headline, in_all
from harness.story.kinds import KINDS, Stage, kind_of, name_in_words
from harness.story.operations import window_of
from tests.support.records_of_runs import results_in, witness_in

S = 1_000_000_000


def witness(kind: str, time_s: float | None = None, table: str = "trace") -> dict[str, Any]:
    rows = [{"table": table} | ({} if time_s is None else {"time_ns": round(time_s * S)})]
    return {"kind": kind, "summary": f"{kind} at {time_s}", "rows": rows}


def invalid(*witnesses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"verdict": "invalid", "witness": list(witnesses)} | more


def kinds(**checkers: dict[str, Any]) -> list[str]:
    return [f.kind for f in violations_by_cause(results_in({"checkers": checkers}))]


def test_two_leaders_lead_the_recorded_run_in_which_one_vote_was_enough(tmp_path: Path) -> None:
    results = as_object(judge(unpacked("kraft-lone-vote", tmp_path), None, lambda _: None, report=False))
    order = list(dict.fromkeys(f.kind for f in violations_by_cause(results_in(results))))
    cause = order.index("two leaders in one epoch")
    assert cause < order.index("logs differ below an equal epoch")
    assert all(cause < order.index(kind) for kind in order if kind_of(kind).stage >= Stage.COMMIT)
    first = violations_by_cause(results_in(results))[0]
    assert first.stage <= Stage.LEADER
    words = headline(results_in(results), {})
    assert words.startswith("Invalid: n2 died unexpectedly"), "what users met leads"
    assert f"First wrong step seen, at {first.moment_ns / 1e9:.3f} s: {first.summary}" in words


def test_the_earliest_moment_comes_first_and_of_equal_moments_the_deepest_stage() -> None:
    late, early = invalid(witness("two leaders in one epoch", 9.0)), invalid(witness("stale read", 4.0))
    assert kinds(elections=late, registers=early) == ["stale read", "two leaders in one epoch"]
    same = invalid(witness("two leaders in one epoch", 4.0))
    assert kinds(registers=early, elections=same) == ["two leaders in one epoch", "stale read"]


def test_a_log_without_a_time_stands_before_the_first_effect_it_can_have() -> None:
    logs = invalid(witness("logs differ below an equal epoch", table="log"))
    votes, answers = invalid(witness("two leaders in one epoch", 3.0)), invalid(witness("stale read", 7.0))
    order = ["two leaders in one epoch", "logs differ below an equal epoch", "stale read"]
    assert kinds(registers=answers, logs=logs, elections=votes) == order
    assert kinds(logs=logs, elections=votes) == order[:2], "without any effect it comes last"


def test_a_loss_seen_in_a_copy_is_not_older_than_its_effect_because_the_write_was() -> None:
    lost = invalid(witness("committed entry lost", 6.5, table="log"))
    early = invalid(witness("high watermark without a majority", 6.6))
    answer = invalid(witness("stale read", 6.7))
    assert kinds(lost=lost, answer=answer, mark=early)[0] == "high watermark without a majority"


def test_all_violations_are_counted_and_not_the_witnesses_kept() -> None:
    ten = [witness("stale read", 1.0 + i) for i in range(10)]
    by_kind = invalid(*ten, looked_at={"violations": 48}, details={"violations_by_kind": {"stale read": 48}})
    keys = invalid(*ten, looked_at={"invalid_keys": 100})
    for checker, count in ((by_kind, 48), (keys, 100)):
        results = results_in({"checkers": {"registers": checker}})
        assert violation_count(results) == count
        assert in_all(results) == f"One checker found {count} violations in all."
        (group,) = groups(results)
        assert len(group.findings) == 10
        assert [(k.kind, k.found, k.exact) for k in group.kinds] == [("stale read", count, True)]


def test_the_first_wrong_step_has_its_time_unless_a_copy_of_a_log_shows_it() -> None:
    answers, votes = invalid(witness("stale read", 7.0)), invalid(witness("two leaders in one epoch", 3.0))
    logs = invalid(witness("logs differ below an equal epoch", 3.0, table="log"))
    timed, copied = (findings(results_in({"checkers": {"a": answers, "b": step}})) for step in (votes, logs))
    assert first_step(timed) == "First wrong step seen, at 3.000 s: two leaders in one epoch at 3.0."
    assert first_step(copied).startswith("First wrong step seen: ")


def test_the_kinds_that_one_checker_found_are_counted_too_and_not_called_exact_if_they_share_a_sum() -> None:
    two = invalid(witness("lost write", 1.0), witness("stale read", 2.0), looked_at={"violations": 9})
    results = results_in({"checkers": {"registers": two}})
    assert in_all(results) == "One checker found 9 violations of 2 kinds."
    (group,) = groups(results)
    assert {k.kind: (k.found, k.exact) for k in group.kinds} == {"lost write": (1, True), "stale read": (8, False)}


def test_the_moment_is_the_answer_that_no_order_explains() -> None:
    columns = ("index", "process", "type", "time_ns")
    rows = ((1, 0, 0, 1), (2, 1, 0, 2), (3, 0, 1, 3), (9, 1, 1, 99))
    events = [dict(zip(columns, row, strict=True)) for row in rows]
    facts = {"letters": {"1": "A", "2": "B"}, "culprit": "A"}
    assert moment_ns(witness_in({"kind": "stale read", "events": events, "facts": facts})) == 3
    assert moment_ns(witness_in({"kind": "stale read", "events": events})) == 99


def answer(kind: str, call: int, time_s: float, *, missed: str | None = None, **facts: Any) -> dict[str, Any]:
    """A read of process 1 that is blamed.  missed: the node of the write that is named, None if none is."""
    rows = [] if missed is None else [(call - 2, 2, 0, 0.2, ""), (call - 1, 2, 1, 0.1, missed)]
    events = [
        {"index": index, "process": process, "type": type_, "time_ns": round((time_s - before_s) * S), "node": node}
        for index, process, type_, before_s, node in (*rows, (call, 1, 0, 0.01, ""), (call + 1, 1, 1, 0, "n1"))
    ]
    return {"kind": kind, "summary": f"{kind} at {time_s}", "events": events, "facts": facts}


def test_one_operation_that_three_checkers_blame_is_one_finding() -> None:
    past = invalid(answer("answer from the past", 20, 5.0), answer("answer from the past", 60, 6.0))
    order = invalid(answer("answer against the order of the log", 60, 6.0, missed="n3") | {"rows": [{"table": "log"}]})
    read = invalid(answer("stale read", 60, 6.0, missed="n3"))
    found = findings(results_in({"checkers": {"past": past, "order": order, "read": read}}))
    assert [(f.lead.kind, [a.kind for a in f.also]) for f in found] == [
        ("stale read", ["answer from the past", "answer against the order of the log"]),
        ("answer from the past", []),
    ]


def test_the_witness_that_names_the_write_it_missed_leads() -> None:
    results = {
        "verdict": "invalid",
        "checkers": {
            "past": invalid(answer("answer from the past", 20, 5.0)),
            "doubt": invalid(answer("stale read", 30, 5.5, missed="n3", suspects=[{"node": "n1"}, {"node": "n3"}])),
            "read": invalid(answer("stale read", 60, 6.0, missed="n3")),
        },
    }
    assert [explains(f) for f in violations_by_cause(results_in(results))] == [4, 2, 0]
    assert headline(results_in(results), {}).startswith("Invalid: stale read at 6.0.")


def test_what_broke_before_the_answers_stands_before_them() -> None:
    votes = invalid(witness("two leaders in one epoch", 3.0))
    reads = invalid(answer("answer from the past", 20, 4.0), answer("stale read", 60, 6.0, missed="n3"))
    assert kinds(reads=reads, votes=votes) == ["two leaders in one epoch", "stale read", "answer from the past"]


def test_two_leaders_stand_before_the_step_that_made_one_of_them() -> None:
    def leads(node: str, time_s: float) -> dict[str, Any]:
        return {"table": "trace", "node": node, "seq": 80, "time_ns": round(time_s * S), "event": "role"}

    step = {"kind": "row without a cause", "summary": "n1 led alone", "rows": [leads("n1", 3.0)]}
    both = {"kind": "two leaders in one epoch", "summary": "both", "rows": [leads("n1", 3.0), leads("n2", 3.1)]}
    later = {"kind": "two leaders in one epoch", "summary": "later", "rows": [leads("n1", 3.0), leads("n5", 9.0)]}
    found = findings(results_in({"checkers": {"steps": invalid(step), "elections": invalid(both)}}))
    assert [(f.lead.kind, [a.kind for a in f.also]) for f in found] == [
        ("two leaders in one epoch", ["row without a cause"])
    ]
    apart = findings(results_in({"checkers": {"steps": invalid(step), "elections": invalid(later)}}))
    assert [f.lead.kind for f in apart] == ["row without a cause", "two leaders in one epoch"]


CHECKERS = Path(__file__).parents[3] / "checkers"
FIRST = ("Witness", "OrderClash", "wrong_alone", "Unexplained", "_disordered", "_tell", "_broken", "Contradiction")
FIRST += ("Decided", "_of_tokens", "_wait", "_violation", "_against", "_of_broker", "_of_partition")
MAKERS = dict.fromkeys(FIRST, 0) | {"_reaches": 3}
"""Calls that name a kind -> place of that argument."""


def test_every_kind_that_a_checker_can_give_is_explained() -> None:
    given = _kinds_in_the_source() | {rule.kind for rule in RULES} | {*WORST_FIRST, *ANOMALIES}
    given -= CATALOG.keys()  # some calls pass the name of a checker, not of a kind
    assert sorted(given - set(KINDS)) == [], "add two sentences about each of these to harness/story/kinds.toml"
    assert sorted(set(KINDS) - given) == [], "no checker gives these any more"


def test_the_search_of_the_source_finds_the_kinds_it_must_find() -> None:
    found = _kinds_in_the_source()
    assert {"stale read", "lost write", "order cycle"} <= found, "kinds that a function returns"
    assert {"log has a hole", "write in a log twice"} <= found, "kinds that are constants of a module"
    assert {"committed entry lost", "voted twice in one epoch"} <= found, "kinds chosen by a condition"
    assert {"two leaders in one epoch", "impossible sum", "partition made twice"} <= found, "kinds handed to a function"


@pytest.mark.parametrize("kind", KINDS)
def test_an_explanation_is_two_plain_sentences(kind: str) -> None:
    sentences = re.findall(r"[^.]+\.(?: |$)", KINDS[kind].means)
    assert len(sentences) == 2
    assert "".join(sentences) == KINDS[kind].means
    assert max(len(sentence.split()) for sentence in sentences) <= 30


def test_anomalies_carry_the_names_that_users_know_beside_the_theory() -> None:
    assert name_in_words("G0-realtime") == "acknowledged append lost (G0-realtime)"
    assert name_in_words("G-nonadjacent") == "long fork (G-nonadjacent)"
    assert name_in_words("lost-update") == "lost update"
    assert name_in_words("stale read") == "stale read"


def test_a_kind_that_is_not_in_the_table_is_an_answer_without_explanation() -> None:
    assert (kind_of("something new").stage, kind_of("something new").means) == (Stage.ANSWER, "")


@cache
def _kinds_in_the_source() -> set[str]:
    return {kind for path in CHECKERS.rglob("*.py") for kind in _kinds_in(ast.parse(path.read_text()))}


def _kinds_in(module: ast.Module) -> Iterator[str]:
    """Every text that reaches the argument `kind` of a maker: directly, through a name, or out of a function `kind`."""
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and (maker := _name_of(node.func)) in MAKERS:
            named = [keyword.value for keyword in node.keywords if keyword.arg == "kind"]
            given = named or node.args[MAKERS[maker] : MAKERS[maker] + 1]
            yield from (text for value in given for text in _texts(value, module))
        if isinstance(node, ast.FunctionDef) and node.name == "kind":
            for inner in ast.walk(node):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    yield from _texts(inner.value, module)


def _name_of(function: ast.expr) -> str:
    """Of a function, of a method of `self`, or of a class that `of` makes."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return {"self": function.attr}.get(function.value.id, function.value.id if function.attr == "of" else "")
    return function.id if isinstance(function, ast.Name) else ""


def _texts(value: ast.expr, module: ast.Module, depth: int = 0) -> set[str]:
    if isinstance(value, ast.Constant):
        return {value.value} if isinstance(value.value, str) else set()
    if isinstance(value, ast.IfExp):
        return _texts(value.body, module, depth) | _texts(value.orelse, module, depth)
    # the kind is an attribute of a finding: a tuple or a table names it
    if isinstance(value, ast.Attribute) and value.attr == "kind":
        firsts = [t.elts[0] for t in ast.walk(module) if isinstance(t, ast.Tuple) and len(t.elts) > 2]
        firsts += [key for table in ast.walk(module) if isinstance(table, ast.Dict) for key in table.keys if key]
        return {text for first in firsts if isinstance(first, ast.Name) for text in _texts(first, module, depth + 1)}
    name = value.attr if isinstance(value, ast.Attribute) and value.attr.isupper() else getattr(value, "id", "")
    if name and depth < 3:
        return {text for given in _given_to(name, module) for text in _texts(given, module, depth + 1)}
    return set()


def _given_to(name: str, module: ast.Module) -> Iterator[ast.expr]:
    """What is assigned to a name anywhere in a module, in loops over pairs too, and where it is imported from."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("checkers.") and name.isupper():
            place = CHECKERS.parent.joinpath(*str(node.module).split("."))
            for source in (place.with_suffix(".py"), *(place / f"{alias.name}.py" for alias in node.names)):
                if source.exists() and f"\n{name} = " in source.read_text():
                    yield from _given_to(name, ast.parse(source.read_text()))
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _matching(name, target, node.value)
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Tuple | ast.List):
            for each in node.iter.elts:
                yield from _matching(name, node.target, each)


def _matching(name: str, target: ast.expr, value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _matching(name, one, other)


DEAD = Ordered(Condition({"n1": "dead"}))
POWER: dict[str, Any] = {"settings": {KEPT: "lose"}, "ordered": DEAD}


def fault(number: int, kind: str, from_s: float, to_s: float = -1e-9, **more: Any) -> FaultRecord:
    card = Card(number, kind, "leader", from_s, to_s)
    return FaultRecord(
        card, Achieved.INSTALLED, "", nodes=("n1",), injected_ns=round(from_s * S), healed_ns=round(to_s * S), **more
    )


Led = list[tuple[float, str]]


def led_by(led: Led, forwards: bool = False, of_keys: bool = False) -> Leadership:
    return Leadership([(round(at * S), node) for at, node in led], forwards, of_keys)


def words(acknowledged_s: float, faults: list[FaultRecord], led: Led | None = None, by: str = "n1") -> str:
    """by: "" where servers pass requests on."""
    cause = cause_of_loss(round(acknowledged_s * S), by, faults, led_by(led or [], forwards=not by))
    return cause.words() if cause else "no fault"


OLD = Measurement("inject", 0, 1, values={f"n1: {OLDEST_LOST}": 14_000.0})
PARTITION = fault(1, "partition", 10, 20)
POWER_LOSS = fault(2, "power", 24, 26, **POWER)
KILL = fault(5, "kill", 24, 26, ordered=DEAD)
DAMAGE = fault(4, "damage", 24, 26, settings={DAMAGES_DATA: True})


@pytest.mark.parametrize(
    ("acknowledged_s", "faults", "led", "expected"),
    [
        # a power loss discards what was acknowledged shortly before it, whichever other faults were in force
        (19.5, [PARTITION, POWER_LOSS], [(0, "n2"), (12, "n1")], "in the 5 s before fault 2 (power)"),
        (22.5, [PARTITION, POWER_LOSS], None, "in the 2 s before fault 2 (power)"),
        (25.0, [PARTITION, POWER_LOSS], [(0, "n2"), (12, "n1")], "during fault 2 (power)"),
        # if the system seldom fsyncs, the window is as long as the measured loss of its disks
        (11.0, [fault(3, "power", 24, 26, **POWER, measured=(OLD,))], None, "in the 13 s before fault 3 (power)"),
        # a damaged disk may lose older data, unless an election explains the loss
        (3.0, [PARTITION, DAMAGE], [(0, "n1")], "in the 21 s before fault 4 (damage)"),
        (15.0, [PARTITION, DAMAGE], [(0, "n1"), (16, "n2")], "during fault 1 (partition)"),
        # a kill loses nothing that had time to reach a disk
        (22.5, [KILL], [(0, "n1")], "in the 2 s before fault 5 (kill)"),
        (12.5, [KILL], [(0, "n1")], "no fault"),
        # a partition loses nothing as long as no other node is elected
        (15.0, [PARTITION], [(0, "n1")], "no fault"),
        (15.0, [PARTITION], [(0, "n2"), (9, "n1")], "no fault"),
        (15.0, [PARTITION], [(0, "n1"), (16, "n2")], "during fault 1 (partition)"),
        # an isolated leader keeps acknowledging after another election, even shortly after the heal
        (15.0, [PARTITION], [(0, "n1"), (14, "n2")], "during fault 1 (partition)"),
        (20.2, [PARTITION], [(0, "n1"), (14, "n2")], "after fault 1 (partition) was healed"),
        (20.2, [PARTITION], [(0, "n1"), (14, "n2"), (40, "n3")], "after fault 1 (partition) was healed"),
        # but a new leader may acknowledge before its report arrives
        (20.2, [PARTITION], [(0, "n1"), (14, "n2"), (20.4, "n1")], "no fault"),
        (9.0, [PARTITION], [(0, "n1"), (12, "n2")], "in the 1 s before fault 1 (partition)"),
        (21.0, [PARTITION], [(0, "n1"), (22, "n2")], "after fault 1 (partition) was healed"),
        # if no node reports a leader, the isolated one may have led
        (15.0, [PARTITION], None, "during fault 1 (partition)"),
        (21.0, [PARTITION], None, "after fault 1 (partition) was healed"),
        (9.0, [PARTITION], None, "in the 1 s before fault 1 (partition)"),
        (4.0, [PARTITION], None, "no fault"),
    ],
)
def test_a_loss_has_the_fault_that_can_have_taken_it(
    acknowledged_s: float, faults: list[FaultRecord], led: Led | None, expected: str
) -> None:
    assert words(acknowledged_s, faults, led) == expected


def test_what_another_server_acknowledged_needs_an_election_to_be_lost_with_a_process_or_a_disk() -> None:
    for faults in ([KILL], [POWER_LOSS], [DAMAGE]):
        assert words(23.0, faults, [(0, "n2")], by="n2") == "no fault"
        assert words(23.0, faults, [(0, "n2"), (25, "n3")], by="n2") != "no fault"
    full = fault(6, "disk", 10, 26, settings={MAY_DIE: True})
    assert words(23.0, [full, fault(7, "partition", 24, 30)], [(0, "n2"), (27, "n3")], by="n2") == (
        "in the 1 s before fault 7 (partition)"
    )


def test_a_server_that_passes_requests_on_is_not_taken_for_its_leader() -> None:
    led: Led = [(0, "n2"), (12, "n3")]
    assert words(23.0, [KILL], led, by="") == "no fault"  # n3 led
    # n2 may still have believed that it led
    assert words(15.0, [PARTITION], led, by="") == "during fault 1 (partition)"
    assert words(23.0, [KILL], [(0, "n1")], by="") == "in the 1 s before fault 5 (kill)"


def message(index: int, process: int, f: str, at_s: float) -> dict[str, Any]:
    return {"index": index, "process": process, "type": index % 2, "f": f, "time_ns": round(at_s * S), "node": "n1"}


def test_a_lost_message_shows_under_the_power_loss_and_not_under_what_was_healed_before_the_poll() -> None:
    later = fault(9, "packets", 30, 40)
    events = [
        message(0, 0, "send", 22),
        message(1, 0, "send", 23),
        message(2, 1, "poll", 44),
        message(3, 1, "poll", 45),
    ]
    witness = {"kind": "lost-write", "summary": "7 was sent and never polled", "events": events}
    results = results_in({"checkers": {"kafka": {"verdict": "invalid", "witness": [witness]}}})
    [violation] = violations_by_cause(results)
    led = led_by([])
    assert symptom_of(violation, [PARTITION, POWER_LOSS, later], led).faults == ("power",)
    assert symptom_of(violation, [PARTITION, later], led).faults == ("partition",)


def lost_write(at_s: float) -> Mapping[str, Any]:
    events = [message(0, 0, "send", at_s - 0.1), message(1, 0, "send", at_s)]
    events += [message(2, 1, "poll", at_s + 20), message(3, 1, "poll", at_s + 21)]
    moment_ns = round((at_s + 21) * S)
    witness = {"kind": "lost-write", "summary": "7 was lost", "events": events, "facts": {"moment_ns": moment_ns}}
    return {"checkers": {"kafka": {"verdict": "invalid", "title": "Kafka", "witness": [witness]}}}


def stored(folder: Path, acknowledged_s: float, faults: Sequence[FaultRecord], led: Led, **declares: bool) -> Path:
    """A run of n1 and n2, and who led as the harness records it: in `leaders` each pair of node and epoch once."""
    counted = declares.get("elections", True)
    seen = [(round(at * S), node, epoch if counted else 0) for epoch, (at, node) in enumerate(led)]
    first = {entry[1:]: entry for entry in reversed(seen)}
    leaders = [dict(zip(("time_ns", "node", "epoch"), entry, strict=True)) for entry in sorted(first.values())]
    report = {"looks": 1, "epoch": 0, "role": "leader", "leader": None}
    reports = [{"time_ns": at_ns, "until_ns": at_ns, "node": node, **report} for at_ns, node, _ in seen]
    spec = {"nodes": 2, "backend": "docker"}
    write_header(folder, run_id="abc", seed=1, started_utc="2026-11-20T03:14:12+00:00", spec=spec)
    write_journal(folder, outcome={"declares": declares, "leaders": leaders, "reports": reports}, faults=faults)
    results = {"verdict": "invalid", "exit_code": 1, "judging_s": 1.0, **lost_write(acknowledged_s)}
    (folder / RESULTS).write_text(json.dumps(results))
    return folder


LATER = fault(8, "kill", 34, 35, ordered=DEAD)
DEPOSED: Led = [(0, "n1"), (14, "n2"), (40, "n1")]


@pytest.mark.parametrize(
    ("acknowledged_s", "led", "declares", "expected"),
    [
        (15.0, DEPOSED, {}, "partition"),
        (20.2, DEPOSED, {}, "partition"),  # deposed, without having heard of the heal yet
        (36.0, DEPOSED, {}, "partition"),
        (36.0, DEPOSED, {"registers_brokers": True}, "kill"),  # n1 may lead the partition that lost the message
        (36.0, DEPOSED, {"leaders_of_keys": True}, "kill"),
        (36.0, [(0, "n2")], {"elections": False}, "kill"),  # n1 answered, and no report shows that it led
        (15.0, [(0, "n1")], {}, "none"),
        (15.0, [(0, "n1"), (2, "n2"), (4, "n1")], {"elections": False}, "none"),
        (15.0, [(0, "n1"), (2, "n2"), (4, "n1"), (16, "n2")], {"elections": False}, "partition"),
    ],
)
def test_the_lake_and_the_page_name_one_fault_for_a_loss(
    tmp_path: Path, acknowledged_s: float, led: Led, declares: dict[str, bool], expected: str
) -> None:
    folder = stored(tmp_path, acknowledged_s, [PARTITION, LATER], led, **declares)
    found = symptom_of_run(folder)
    assert found is not None
    [row] = facts_of(folder).rows["violations"].to_pylist()
    assert (row["symptom"], row["faults"]) == (found[1].id, expected)
    named = re.findall(r"it was acknowledged [^;(]*fault \d+ \((\w+)\)", render(folder).read_text())
    assert set(named) == ({expected} - {"none"})


def test_nobody_is_known_to_have_led_where_a_trace_cannot_be_read(tmp_path: Path) -> None:
    folder = stored(tmp_path, 15.0, [PARTITION], DEPOSED)
    assert leadership_of(folder).led
    traces = StoredRun(folder).trace
    traces.mkdir(parents=True)
    (traces / "n1.parquet").write_bytes(b"torn")
    assert leadership_of(folder) == Leadership()


def test_a_drawing_of_many_operations_ends_with_the_one_that_has_no_place() -> None:
    events = [message(index, index // 2, "read", index / 10) for index in range(40)]
    window = window_of(events, {"letters": {"20": "A"}, "culprit": "A"})
    shown = window.first(5)
    assert [op.invoke for op in shown.operations] == [12, 14, 16, 18, 20]
    assert shown.culprit == window.culprit
    assert [op.invoke for op in window_of(events, {}).first(3).operations] == [0, 2, 4]
