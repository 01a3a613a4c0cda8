"""What becomes of the answer of a client's method: what no such function answers is never taken for a result."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from checkers.base.history import Type
from system_under_test.client import Request
from system_under_test.functions import outcome

STEPS = json.dumps([["r", "a", None], ["append", "a", 1]])
ROWS = [(1,), (2,)]


@pytest.mark.parametrize(
    ("answer", "elements"),
    [
        ((row[0] for row in ROWS), [1, 2]),
        (map(int, "12"), [1, 2]),
        ({1: "one", 2: "two"}.keys(), [1, 2]),
        (np.array([1, 2]), [1, 2]),
        ((1, 1), [1, 1]),
        ([], []),
    ],
)
def test_a_collection_of_any_kind_keeps_all_its_elements(answer: Any, elements: list[int]) -> None:
    assert outcome("members", Request("read", "k"), answer, "n1").payload == json.dumps(elements)


def test_numbers_of_numpy_are_numbers() -> None:
    found = outcome("read", Request("read", "k"), np.int64(7), "n1")
    assert (found.type, found.value, type(found.value)) == (Type.OK, 7, int)
    assert outcome("cas", Request("cas", "k", 1, 2), np.bool_(False), "n1").type is Type.FAIL


@pytest.mark.parametrize(
    ("function", "answer", "words"),
    [
        ("read", "7", r"read returned '7' \(str\), where a whole number or None is expected"),
        ("read", True, "True .bool.,"),
        ("read", 7.0, "7.0 .float.,"),
        ("read", 1 << 63, "more than 64 bits"),
        ("total", None, r"total returned None \(NoneType\), where a whole number is expected"),
        ("members", None, r"members returned None \(NoneType\), where a list of whole numbers is expected"),
        ("members", "", "''"),
        ("members", b"12", "b'12'"),
        ("members", {}, "{}"),
        ("members", ["1"], r"is expected: '1' \(str\) is in it"),
        ("cas", 1, r"cas returned 1 \(int\), where True or False is expected"),
        ("cas", None, "None"),
        ("get", None, "where a string is expected"),
        ("balances", {"a": None}, r"None \(NoneType\) is in it"),
        ("balances", [1], "a dictionary from account to whole number"),
        ("transact_lists", None, "there were 2 steps"),
        ("transact_lists", [], "there were 2 steps"),
        ("transact_lists", [["r", "b", []], ["append", "a", 1]], r"step 1 was \['r', 'a', None\], and is"),
        ("transact_lists", [["r", "a", []], ["append", "a", 2]], r"step 2 was \['append', 'a', 1\], and is"),
        ("transact_lists", [["r", "a", 5], ["append", "a", 1]], "a list of whole numbers in each read"),
        ("transact_registers", [["r", "a", [5]], ["append", "a", 1]], r"\[5\] \(list\) is in it"),
        ("write", False, "raise an exception where a call fails"),
        ("write", OSError("torn"), "raise an exception where a call fails"),
    ],
)
def test_an_answer_that_the_function_cannot_have_is_refused_in_one_sentence(
    function: str, answer: object, words: str
) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        outcome(function, Request("f", "k", 1, 2, STEPS), answer, "n1")
    assert "\n" not in str(refusal.value)


def test_what_libraries_answer_to_a_write_is_success() -> None:
    for answer in (None, True, 1, 0, "OK", object()):
        assert outcome("write", Request("write", "k", 5), answer, "n1").type is Type.OK


def test_the_steps_of_a_transaction_are_kept_with_what_was_read() -> None:
    request = Request("txn", payload=STEPS)
    found = outcome("transact_lists", request, (("r", "a", (5, 6)), ("append", "a", 1)), "n1")
    assert json.loads(str(found.payload)) == [["r", "a", [5, 6]], ["append", "a", 1]]
