"""One reader and one writer of results.json: whole files give typed values, and damage is named by one error."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from checkers.base import results
from checkers.base.verdict import Validity, Witness
from checkers.record.files import BrokenFile

STALE = Witness("stale read", "n1 answered 1", ({"index": 3, "type": 0},), ({"table": "log"},), {"letters": {"3": "A"}})
CRITERIA = [
    {"name": "ok operations", "value": 7, "least": 9, "met": False, "demanded": True, "words": "", "advice": ""}
]
WHOLE = results.Results(
    results.RunVerdict.INVALID,
    {
        "registers": results.CheckerResult(
            Validity.INVALID,
            {"keys": 2},
            "",
            (STALE,),
            {"violations_by_kind": {"stale read": 4}},
            "Registers",
            "?",
            0.5,
        ),
        "vacuity": results.CheckerResult(Validity.UNKNOWN, reason="too weak", details={"criteria": CRITERIA}),
        "statistics": results.CheckerResult(
            Validity.VALID, {"operations": 7}, details={"errors": [{"error": "no", "fail": 2}]}
        ),
    },
    1,
    "Invalid: n1 answered 1.",
    judged_by="in process",
    judging_s=0.0,
    planted=results.PlantedBugResult("stale-read", True, "found"),
    signer=results.SignerWords("nobody", words="unsigned"),
    finding=results.FindingStory("redis", False, True, "Redis", "without fsync", "writes were lost"),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    results.write_results(tmp_path, WHOLE)
    found = results.read_results(tmp_path)
    assert found == WHOLE
    assert found is not None and found.checkers["registers"].violations_by_kind == {"stale read": 4}
    assert [(each.name, each.met) for each in found.vacuity.criteria] == [("ok operations", False)]
    assert [(each.error, each.fail, each.info) for each in found.statistics.errors] == [("no", 2, 0)]


def test_a_run_that_was_never_judged_has_no_results(tmp_path: Path) -> None:
    assert results.read_results(tmp_path) is None


def test_empty_fields_are_left_out_and_zero_is_not_empty() -> None:
    written = results.as_object(results.Results(results.RunVerdict.VALID, exit_code=0, judging_s=0.0))
    assert written == {"verdict": "valid", "exit_code": 0, "judging_s": 0.0, "checkers": {}}


def test_a_figure_that_is_not_finite_is_written_as_null(tmp_path: Path) -> None:
    one = results.CheckerResult(Validity.VALID, {"n": 1}, details={"p50": [math.nan, 2.0]})
    results.write_results(tmp_path, results.Results(results.RunVerdict.VALID, {"one": one}))
    found = results.read_results(tmp_path)
    assert found is not None and found.checkers["one"].details == {"p50": [None, 2.0]}


def test_results_of_an_older_version_lack_fields_and_those_of_a_later_one_have_more() -> None:
    old = {
        "verdict": "invalid",
        "checkers": {"one": {"verdict": "invalid", "witness": [{"kind": "k", "summary": "s"}]}},
    }
    found = results.parse_results(old)
    assert found.invalid["one"].witness == (Witness("k", "s"),) and found.planted is None and found.exit_code is None
    assert results.parse_results({"verdict": "valid", "later": 1}) == results.Results(results.RunVerdict.VALID)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "results.json: expected `object`, got `array`"),
        ({}, "results.json: object missing required field `verdict`"),
        ({"verdict": "fine"}, "results.json: verdict: invalid enum value 'fine'"),
        ({"verdict": "valid", "checkers": {"a": {}}}, "results.json: checkers[...]: object missing required field"),
        ({"verdict": "valid", "exit_code": "0"}, "results.json: exit_code: expected `int | null`, got `str`"),
        ({"verdict": "valid", "planted": {"bug": "b"}}, "results.json: planted: object missing required field `found`"),
        (
            {"verdict": "unknown", "checkers": {"vacuity": {"verdict": "unknown", "details": {"criteria": [{}]}}}},
            "results.json: checkers.vacuity.details: criteria[0]: object missing required field `name`",
        ),
        (
            {"verdict": "valid", "checkers": {"a": {"verdict": "valid", "details": {"violations_by_kind": 1}}}},
            "results.json: violations_by_kind: expected `object`, got `int`",
        ),
    ],
)
def test_damage_is_one_error_that_names_file_and_field(raw: Any, words: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(raw))
    with pytest.raises(BrokenFile) as refused:
        results.read_results(tmp_path)
    assert str(refused.value).startswith(words.replace("`", ""))
