"""What Kafka's own clients find: the whole at night, its page and the reading of failures always."""

from __future__ import annotations

import pytest

from bench import kafka_compatibility as outside
from bench.kafka_compatibility import ADMIN, LIBRDKAFKA, Result, page


def test_the_page_counts_and_names_each_result_without_what_changes_each_time() -> None:
    made = page(
        [
            Result(LIBRDKAFKA, "0063", "passed"),
            Result("kcat", "-L", "failed", "127.0.0.1:4711 | of rnd0123456789abcdef"),
        ]
    )
    assert "| librdkafka | its own tests in C, crate rdkafka-sys 4.10.0+2.12.1 | 1 | 0 | 0 |" in made
    assert "| kcat | `-L` | a broker \\| of rnd… |" in made


def test_the_first_failure_of_librdkafkas_runner_is_the_reason() -> None:
    output = b'x\n\x1b[31m### Test "0081" failed at a.c:1 ###\nResource 1: got 42\nmore'
    assert outside._why(output) == "Resource 1: got 42"
    assert outside._why(b"first\nlast\n") == "last"


def test_a_suite_that_is_unknown_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert outside.main(["--only", "java"]) == 3
    assert "there is no suite 'java'" in capsys.readouterr().err


@pytest.mark.nightly
@pytest.mark.parametrize("suite", outside.SUITES)
def test_no_test_of_administration_fails(suite: str) -> None:
    assert len(ADMIN) > 10
    assert outside.main(["--only", suite]) == 0
