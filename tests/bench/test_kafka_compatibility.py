"""The page that compares two clusters names every test that has not the same outcome on both."""

from __future__ import annotations

from bench.kafka_compatibility import BROKERS, KAFKA, Result, differing, page_of_brokers


def test_a_test_without_the_same_outcome_on_both_clusters_is_named() -> None:
    found = {
        KAFKA: [Result("s", "same", "passed"), Result("s", "other", "passed"), Result("s", "neither", "failed", "why")],
        BROKERS: [Result("s", "same", "passed"), Result("s", "other", "skipped"), Result("s", "neither", "failed")],
    }
    assert differing(found) == [("s", "other")]
    found[BROKERS].append(Result("s", "only here", "passed"))
    assert differing(found) == [("s", "other"), ("s", "only here")]
    lines = page_of_brokers(found, ["s"]).splitlines()
    assert "| s | 2 1 0 | 2 1 1 |" in lines
    assert "| s | `other` | passed, skipped |  |" in lines
    assert "| s | `only here` | not run, passed |  |" in lines
    assert "| s | `neither` | failed, failed | why |" in lines
    assert not [line for line in lines if "`same`" in line]
