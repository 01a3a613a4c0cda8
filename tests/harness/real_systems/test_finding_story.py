"""The story of a run that `find` made: what it was to show, what it showed, and which command shows it again."""

from __future__ import annotations

import pytest

from checkers.base.results import FindingStory
from harness.real_systems.finding_story import story_of
from harness.spec import Spec, WrongSpec
from harness.started import program
from tests.support.results_of_runs import results_in

LOST = {
    "verdict": "invalid",
    "checkers": {
        "set": {
            "verdict": "invalid",
            "looked_at": {"acknowledged": 100, "missing_from_last_read": 7},
            "witness": [{"kind": "acknowledged element lost", "summary": "acknowledged element lost: 5 is missing"}],
        }
    },
}
VALID = {"verdict": "valid", "checkers": {}}
UNKNOWN = {"verdict": "unknown", "checkers": {}}


def story(name: str | None, results: dict, clean: bool = False) -> FindingStory | None:
    return story_of(Spec(finding=name, clean=clean), results_in(results))


def test_a_finding_that_was_seen_has_figures_a_witness_and_its_publication() -> None:
    seen = story("redis", LOST)
    assert seen is not None and seen.as_expected and not seen.clean
    assert seen.system == "Redis 7.0 with Sentinel" and "down-after-milliseconds 2000" in seen.configuration
    assert "acknowledged 100 elements, and 7 of them are missing" in seen.words
    assert seen.witness == "acknowledged element lost: 5 is missing"
    assert seen.published.startswith("Jepsen 2013")


@pytest.mark.parametrize("results", [VALID, UNKNOWN])
def test_a_finding_that_was_not_seen_is_not_told_as_if_it_were(results: dict) -> None:
    missed = story("redis", results)
    assert missed is not None and not missed.as_expected
    assert missed.words.endswith("It did not show it.") and not missed.witness and not missed.published


@pytest.mark.parametrize("name", ["mariadb", "etcd-set"])
@pytest.mark.parametrize(("results", "words"), [(VALID, "and it did."), (UNKNOWN, "does not show that it did.")])
def test_a_clean_run_says_whether_the_system_kept_its_promise(name: str, results: dict, words: str) -> None:
    clean = story(name, results, clean=True)
    assert clean is not None and clean.as_expected == (results is VALID)
    assert clean.words.endswith(words)


@pytest.mark.parametrize(("name", "clean"), [(None, False), ("no-such-finding", False), ("etcd-set", False)])
def test_other_runs_have_no_story(name: str | None, clean: bool) -> None:
    assert story(name, VALID, clean) is None


def test_a_figure_that_is_missing_breaks_nothing() -> None:
    bare = {"verdict": "invalid", "checkers": {"set": LOST["checkers"]["set"] | {"looked_at": {}}}}
    seen = story("redis", bare)
    assert seen is not None and "acknowledged some elements" in seen.words


def test_the_command_that_runs_it_again_is_the_one_that_ran_it() -> None:
    assert Spec(finding="redis", seed=7).rerun() == "make find-redis SEED=7"
    assert Spec(finding="redis", seed=7, backend="docker").rerun() == "make find-redis SEED=7 BACKEND=docker"
    assert Spec(finding="etcd-set", clean=True, seed=7).rerun() == f"{program()} find etcd-set --clean --seed 7"


def test_a_finding_that_is_no_name_is_refused() -> None:
    with pytest.raises(WrongSpec, match="must be a name"):
        Spec.from_json({"finding": ["redis"]})
