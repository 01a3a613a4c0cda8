"""After recovery every server answers the same: injected differences, and a brute force over small histories."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import write_journal

from checkers.base.columns import HISTORY
from checkers.base.history import Type
from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.judging import judge_run
from checkers.replicas import CONVERGENCE, DIFFER, INVENTED

FINAL_NS = 1_000
Answer = tuple[str, str | None, Any]
"""(node, key, what it answered in the final phase)."""


def judged(folder: Path, answers: Sequence[Answer], written: Mapping[Any, list[int]], f: str = "read") -> Verdict:
    rows: list[dict[str, Any]] = []

    def add(time_ns: int, type_: Type, f: str, key: str | None, node: str = "", **answer: Any) -> None:
        row = {"index": len(rows), "process": 0, "time_ns": time_ns, "type": int(type_), "f": f, "key": key}
        rows.append(dict.fromkeys(HISTORY.names) | row | {"node": node} | answer)

    for key, values in written.items():
        for value in values:
            add(1, Type.INVOKE, "write", key, value=value)
            add(2, Type.INFO, "write", key, value=value)
    add(3, Type.INVOKE, f, "k0")
    add(4, Type.OK, f, "k0", "n1", value=77)  # before the final phase a read may return any value
    for node, key, answer in answers:
        shown = {"payload": json.dumps(answer)} if isinstance(answer, list) else {"value": answer}
        add(FINAL_NS, Type.INVOKE, f, key)
        add(FINAL_NS + 1, Type.OK, f, key, node, **shown)
    finals = tuple((f, key) for key in written)
    run = StoredRun(folder, Demands(servers=("n1", "n2"), reads=frozenset({f}), final_reads=finals))
    pq.write_table(pa.Table.from_pylist(rows, HISTORY), run.history)
    phases = [{"name": "final reads", "start_ns": FINAL_NS, "end_ns": FINAL_NS + 5}]
    write_journal(folder, outcome={"phases": phases})
    return judge_run(run, [CONVERGENCE])["convergence"]


def test_servers_that_agree_are_valid(tmp_path: Path) -> None:
    verdict = judged(tmp_path, [("n1", "k0", 5), ("n2", "k0", 5), ("n1", "k1", None), ("n2", "k1", None)], WRITTEN)
    assert verdict.validity is Validity.VALID, verdict.reason
    assert verdict.looked_at == {"keys": 2, "servers": 2, "final reads": 4}


WRITTEN = {"k0": [5, 6], "k1": [7]}


def test_two_servers_that_differ_are_both_named(tmp_path: Path) -> None:
    verdict = judged(tmp_path, [("n1", "k0", 5), ("n2", "k0", 6), ("n1", "k1", 7), ("n2", "k1", 7)], WRITTEN)
    assert verdict.validity is Validity.INVALID
    (witness,) = verdict.witnesses
    assert (witness.kind, witness.facts["nodes"]) == (DIFFER, ["n1", "n2"])
    assert witness.summary == "after recovery n1 answered 5 for k0, and n2 answered 6"
    assert [event["node"] for event in witness.events] == ["n1", "n2"]


def test_the_last_answer_of_a_server_counts(tmp_path: Path) -> None:
    late = [("n1", "k0", 5), ("n2", "k0", 6), ("n1", "k1", 7), ("n2", "k1", 7), ("n1", "k0", 6)]
    assert judged(tmp_path, late, WRITTEN).validity is Validity.VALID


def test_a_value_that_nobody_wrote_is_found_though_all_agree(tmp_path: Path) -> None:
    answers = [("n1", "k0", 7), ("n2", "k0", 7), ("n1", "k1", 7), ("n2", "k1", 7)]
    verdict = judged(tmp_path, answers, WRITTEN)
    assert {witness.kind for witness in verdict.witnesses} == {INVENTED}
    assert "n1 answered 7 for k0, and no client wrote this value" in verdict.witnesses[0].summary


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([("n1", "k0", 5), ("n2", "k0", 5)], "no final read of k1 was answered"),
        ([("n1", "k0", 5), ("n2", "k0", 5), ("n1", "k1", 7)], "n2 answered no final read of k1"),
    ],
)
def test_what_was_not_read_is_unknown(answers: list[Answer], words: str, tmp_path: Path) -> None:
    verdict = judged(tmp_path, answers, WRITTEN)
    assert verdict.validity is Validity.UNKNOWN and words in verdict.reason


def test_the_order_in_which_a_server_shows_a_set_says_nothing(tmp_path: Path) -> None:
    one, other = [("n1", "k0", [5, 6]), ("n2", "k0", [6, 5])], [("n1", "k0", [5, 6]), ("n2", "k0", [6])]
    assert judged(tmp_path, one, {"k0": [5, 6]}, "members").validity is Validity.VALID
    assert judged(tmp_path, other, {"k0": [5, 6]}, "members").validity is Validity.INVALID
    assert judged(tmp_path, one, {"k0": [5, 6]}, "entries").validity is Validity.INVALID


def test_small_histories_against_the_definition(tmp_path: Path) -> None:
    """Every pair of answers of two servers, in one or two rounds, of values that were written or not."""
    values = (None, 5, 9)
    for first, second, third in product(values, repeat=3):
        answers = [("n1", "k0", first), ("n2", "k0", second), ("n1", "k0", third)]
        last = {"n1": third, "n2": second}
        right = last["n1"] == last["n2"] and not {*last.values()} - {None, 5}
        verdict = judged(tmp_path, answers, {"k0": [5]})
        assert (verdict.validity is Validity.VALID) == right, answers
        assert (verdict.validity is Validity.INVALID) != right, answers


def test_a_number_that_no_column_holds_was_written_by_nobody(tmp_path: Path) -> None:
    answers = [(node, "k0", [5, 10**40]) for node in ("n1", "n2")]
    verdict = judged(tmp_path, answers, {"k0": [5]}, "members")
    assert {witness.kind for witness in verdict.witnesses} == {INVENTED}


@pytest.mark.parametrize(("key", "value"), [(None, 5), ("k0", -(2**63)), ("k0", 2**63 - 1)])
def test_what_was_written_is_found_without_a_key_and_at_the_ends_of_64_bits(
    key: str | None, value: int, tmp_path: Path
) -> None:
    verdict = judged(tmp_path, [(node, key, value) for node in ("n1", "n2")], {key: [value]})
    assert not verdict.witnesses
