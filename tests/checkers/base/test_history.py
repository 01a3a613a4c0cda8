"""Values keep their digits and their kind from the file to the comparison, and invokes find their completions."""

from __future__ import annotations

from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkers.base.checker import Budget
from checkers.base.history import Event, Type, paired
from checkers.base.values import decode, encode, number_of, parse
from checkers.base.verdict import Validity
from checkers.by_hand import Ask, FileVerdict, judge, task_of
from checkers.formats.jepsen import FormReader
from checkers.models.model import exact
from checkers.sealing.sealed_history import paired_rows

DIFFERENT = """12345678901234567.89M 12345678901234567.88M 1e400 2e400 1e-400 0.1 0.10000000000000000001 1 1.0 true
"1" nil 9007199254740993 9007199254740993.0 9007199254740992.0 123456789012345678901234567890 [1,2] #{1,2} "#{1 2}" []
#{} {} {:a,1} [[:a,1]] {"1",1} {1,1} {1.0,1} {true,1} {"true",1} [1,[2]] [1,#{2}] [{:a,1.5M}]
[{:a,1.50000000000000000001M}]"""
EQUAL = (
    "0.1 0.10M 1e-1 1E-1",
    "1e400 10e399 1.0e400M",
    "12345678901234567.89M 12345678901234567.890",
    "#{1,2} #{2,1}",
    "{:a,1,:b,2} {:b,2,:a,1}",
    "5 5N +5",
    "(1,2) [1,2]",
    "0.0 -0.0",
)


def values_of(edn: str) -> list[Any]:
    return [exact(decode(encode(form.value))) for form in FormReader(edn).items(whole=True)]


def test_values_of_other_digits_or_another_kind_differ() -> None:
    values = values_of(DIFFERENT)
    assert len(set(values)) == len(values) > 30
    assert len({repr(value) for value in values}) == len(values)


@pytest.mark.parametrize("texts", EQUAL)
def test_one_value_has_many_texts(texts: str) -> None:
    assert len(set(values_of(texts))) == 1


def test_a_number_is_a_float_only_if_that_is_the_same_number() -> None:
    assert number_of("0.1") == 0.1
    assert isinstance(number_of("0.1"), float)
    assert number_of("1e400") == Decimal("1e400")
    with pytest.raises(ValueError, match="too large"):
        parse("1e99999999999999999999")
    assert parse("[NaN]") == parse("[NaN]")


REGISTER = """{{:process 0, :type :invoke, :f :write, :value {0}}}
{{:process 0, :type :ok, :f :write, :value {0}}}
{{:process 1, :type :invoke, :f :read, :value nil}}
{{:process 1, :type :ok, :f :read, :value {1}}}
"""
SET = REGISTER.replace(":write", ":add").replace(":value {1}}}", ":value [{1}]}}")
WRITES = REGISTER.replace(":f :write, :value {0}", ":f :txn, :value [[:w x {0}]]")
TRANSACTION = WRITES.replace(":read, :value nil", ":txn, :value [[:r x nil]]").replace(
    ":read, :value {1}", ":txn, :value [[:r x {1}]]"
)
LISTS = TRANSACTION.replace(":w x", ":append x").replace("[:r x {1}]", "[:r x [{1}]]")
QUEUE = REGISTER.replace(":write", ":enqueue").replace(":read", ":dequeue")
KAFKA = """{{:process 0, :type :invoke, :f :send, :value [[:send 0 {0}]]}}
{{:process 0, :type :ok, :f :send, :value [[:send 0 [0 {0}]]]}}
{{:process 1, :type :invoke, :f :poll, :value [[:poll]]}}
{{:process 1, :type :ok, :f :poll, :value [[:poll {{0 [[0 {1}]]}}]]}}
"""
LOG = SET.replace(":add", ":append")
IN_MODELS = {
    "register": REGISTER, "cas-register": REGISTER, "set": SET, "rw-register": TRANSACTION, "list-append": LISTS,
    "queue": QUEUE, "kafka": KAFKA, "append-log": LOG,
}  # fmt: skip


def judged(path: Path, text: str, model: str) -> FileVerdict:
    (path / "history.edn").write_text(text)
    return judge(task_of(path / "history.edn", Ask(model), Budget()).part, Budget())


@pytest.mark.parametrize("model", IN_MODELS)
@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("12345678901234567.89M", "12345678901234567.88M"),
        ("1e400", "2e400"),
        ("{:a 1}", "[[:a 1]]"),
        ("#{1 2}", "[1 2]"),
    ],
)
def test_every_model_tells_such_values_apart(tmp_path: Path, model: str, written: str, shown: str) -> None:
    assert judged(tmp_path, IN_MODELS[model].format(written, written), model).verdict.validity is Validity.VALID
    assert judged(tmp_path, IN_MODELS[model].format(written, shown), model).verdict.validity is Validity.INVALID


# Pairs: the object form and the columnar form agree with a search row by row

ROWS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(list(Type))), max_size=24)
"""(process, type) of each row, in index order; any order of types, as in a history that breaks its grammar."""


@given(ROWS)
def test_both_forms_pair_what_a_search_pairs(rows: list[tuple[int, Type]]) -> None:
    events = [Event(index, 0, process, type_, "read") for index, (process, type_) in enumerate(rows)]
    found = [(one.index, other.index if other else -1) for one, other in paired(events, _type, _process)]
    assert found == _searched(rows)


@given(ROWS, st.randoms(use_true_random=False))
def test_the_columns_may_stand_in_any_order(rows: list[tuple[int, Type]], random: object) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    index = np.array(order, np.int64)
    process = np.array([rows[at][0] for at in order], np.int32)
    type_ = np.array([rows[at][1] for at in order], np.int8)
    invokes, completions = paired_rows(index, process, type_)
    named = [*index.tolist(), -1]
    assert [(named[i], named[c]) for i, c in zip(invokes, completions, strict=True)] == _searched(rows)


_type, _process = attrgetter("type"), attrgetter("process")


def _searched(rows: list[tuple[int, Type]]) -> list[tuple[int, int]]:
    """Return (index of an invoke, of its completion or -1): the next row of its process, if that is no invoke."""
    found = []
    for index, (process, type_) in enumerate(rows):
        if type_ is Type.INVOKE:
            later = [at for at in range(index + 1, len(rows)) if rows[at][0] == process]
            ends = bool(later) and rows[later[0]][1] is not Type.INVOKE
            found.append((index, later[0] if ends else -1))
    return found
