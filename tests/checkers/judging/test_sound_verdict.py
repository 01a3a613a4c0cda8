"""A checker's result is kept only if it is a verdict that can be serialized and has evidence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkers.base.checker import Checker, Part
from checkers.base.results import as_object
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict, Witness
from checkers.judging.pipeline import judge_run, results_of

MINE = Checker("mine", "Mine", "Is it?", lambda run: [Part(("part",))], lambda part, budget: 0, lambda run, found: None)  # type: ignore[arg-type,return-value]
OTHER = replace(MINE, name="other", combine=lambda run, found: Verdict(Validity.VALID, {"rows": 1}))


def judged(returned: Any, **changes: Any) -> dict[str, Any]:
    """Return the results of a run that this checker and a correct one judge; they can be written to a file."""
    mine = replace(MINE, combine=lambda run, found: returned, **changes)
    return json.loads(json.dumps(as_object(results_of(judge_run(StoredRun(Path("nowhere")), [mine, OTHER])))))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        pytest.param(None, "mine returned None, which is no Verdict", id="nothing"),
        pytest.param("valid", "mine returned 'valid', which is no Verdict", id="a word"),
        pytest.param(Verdict(Validity.VALID, {"rows": object()}), "neither a number nor words", id="an object"),
        pytest.param(Verdict(Validity.VALID, {"rows": float("nan")}), "neither a number nor words", id="no number"),
        pytest.param(Verdict(Validity.VALID, {1: 1}), "has the key 1, which is no text", id="a key"),  # type: ignore[dict-item]
        pytest.param(Verdict(Validity.VALID, 7), "its looked_at is 7", id="no mapping"),  # type: ignore[arg-type]
        pytest.param(Verdict(Validity.VALID, {"rows": 1}, details={"x": {1, 2}}), "written as JSON", id="details"),
        pytest.param(
            Verdict(Validity.INVALID, {"rows": b"1"}, witnesses=(Witness("wrong", "It is wrong."),)),  # type: ignore[dict-item]
            "mine returned invalid, but 'rows' in its looked_at",
            id="a violation",
        ),
    ],
)
def test_what_is_no_verdict_is_unknown_and_the_others_are_judged(returned: Any, words: str) -> None:
    results = judged(returned)
    assert results["checkers"]["mine"]["verdict"] == "unknown"
    assert words in results["checkers"]["mine"]["reason"]
    assert results["checkers"]["mine"]["reason"].startswith("mine returned")
    assert (results["verdict"], results["checkers"]["other"]["verdict"]) == ("unknown", "valid")


@pytest.mark.parametrize("looked_at", [{}, {"answers": 0}, {"answers": 0, "share": 0.0, "at": ""}])
def test_a_checker_that_looked_at_nothing_is_not_valid(looked_at: dict[str, Any]) -> None:
    mine = judged(Verdict(Validity.VALID, looked_at))["checkers"]["mine"]
    assert (mine["verdict"], mine["looked_at"]) == ("unknown", looked_at)
    assert "mine returned valid, but it looked at nothing" in mine["reason"]


def test_a_checker_that_looked_at_anything_or_judges_the_test_itself_is_valid() -> None:
    assert judged(Verdict(Validity.VALID, {"answers": 0, "writes": 1}))["verdict"] == "valid"
    assert judged(Verdict(Validity.VALID, {"log": "n1"}))["verdict"] == "valid"
    assert judged(Verdict(Validity.VALID, {"deaths": 0}), about_the_run=True)["verdict"] == "valid"


def test_a_run_whose_clients_no_checker_could_judge_is_unknown() -> None:
    nothing = Verdict(Validity.NOT_APPLICABLE, reason="there are no transactions")
    results = judged(nothing, needs=frozenset({"history", "model"}))
    assert (results["verdict"], results["exit_code"]) == ("unknown", 2)
    assert results["summary"] == "no checker judged what clients saw, so the verdict is unknown"
    assert judged(nothing)["verdict"] == "valid", "a checker that is applied to every run may be not applicable"


def test_a_need_that_nothing_offers_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"checker mine needs 'histroy', which nothing offers \(known: history, logs"):
        replace(MINE, needs=frozenset({"histroy"}))  # type: ignore[arg-type]
