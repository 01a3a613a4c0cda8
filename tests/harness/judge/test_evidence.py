"""A run whose evidence is not whole is unknown, and says what is missing; a whole one is valid."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from canary_run import canary_run

from checkers.base.results import as_object
from checkers.base.stored_run import StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.record.files import BrokenFile
from checkers.run_quality.evidence import EVIDENCE
from checkers.sealing import sealed_history
from checkers.sealing.manifest import write_manifest
from checkers.sealing.seal import seal
from harness.judge.judge_run import demands_on, judge, spec_of


def silent(_: str) -> None:
    """Progress that no test reads."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return canary_run(tmp_path_factory.mktemp("results"))


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


@pytest.fixture
def sealed(run: Path) -> Path:
    seal(run)
    return run


def judged(run: Path) -> tuple[str, str]:
    """The verdict of the run, and the reason of the checker of evidence."""
    results = as_object(judge(run, None, silent, report=False))
    return results["verdict"], results["checkers"]["evidence"]["reason"]


def why_unknown(run: Path) -> str:
    verdict, why = judged(run)
    assert verdict == "unknown"
    return why


def test_a_whole_run_is_valid_and_stays_so_when_judged_again(run: Path) -> None:
    assert judged(run) == ("valid", "")
    assert judged(run) == ("valid", "")


@pytest.mark.parametrize("share", [0.5, 0.99])
def test_a_stream_that_lost_its_end_is_unknown(run: Path, share: float) -> None:
    stream = run / "history.arrows"
    content = stream.read_bytes()
    stream.write_bytes(content[: int(len(content) * share)])
    write_manifest(run)  # the attacker may also know the manifest
    assert "and journal.jsonl counts" in why_unknown(run)


def test_a_batch_that_was_damaged_is_unknown_and_the_rest_is_kept(run: Path) -> None:
    stream = run / "history.arrows"
    content = bytearray(stream.read_bytes())
    at = len(content) * 2 // 3
    content[at : at + 300] = b"\xff" * 300
    stream.write_bytes(content)
    assert "history.arrows" in why_unknown(run)
    assert stream.exists()


Change = Callable[[pa.Table], pa.Table]


def without(table: pa.Table, row: int) -> pa.Table:
    return pa.concat_tables([table.slice(0, row), table.slice(row + 1)])


def renumbered(table: pa.Table) -> pa.Table:
    return table.set_column(0, table.schema.field(0), pa.array(range(len(table)), pa.int64()))


def half(table: pa.Table) -> pa.Table:
    return table.slice(0, len(table) // 2)


def without_its_last_operations(table: pa.Table) -> pa.Table:
    return table.slice(0, len(table) - 4)


def without_one_operation(table: pa.Table) -> pa.Table:
    """The first read after the middle and its answer."""
    middle = len(table) // 2
    rows = table.select(["process", "type", "f"]).to_pylist()
    first = next(i for i in range(middle, len(rows)) if rows[i]["f"] == "read" and rows[i]["type"] == 0)
    answer = next(i for i in range(first + 1, len(rows)) if rows[i]["process"] == rows[first]["process"])
    return renumbered(without(without(table, answer), first))


def with_two_rows_exchanged(table: pa.Table) -> pa.Table:
    """Two rows of different processes, so that the grammar still holds."""
    process, time_ns = table["process"].to_pylist(), table["time_ns"].to_pylist()
    at = next(i for i in range(40, len(process) - 1) if process[i] != process[i + 1] and time_ns[i] < time_ns[i + 1])
    order = [*range(at), at + 1, at, *range(at + 2, len(process))]
    return renumbered(table.take(order))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (half, "and journal.jsonl counts"),
        (without_its_last_operations, "the history shows"),
        (without_one_operation, "and journal.jsonl counts"),
        (with_two_rows_exchanged, "is earlier than the row before it"),
    ],
)
def test_a_history_that_lost_rows_is_unknown_even_under_a_fresh_manifest(
    sealed: Path, change: Change, words: str
) -> None:
    history = sealed / "history.parquet"
    pq.write_table(change(pq.read_table(history)), history)
    write_manifest(sealed)
    assert words in why_unknown(sealed)


def of_parts(run: Path, change: Change, rows_in_part: int, monkeypatch: pytest.MonkeyPatch) -> Verdict:
    """The verdict of the checker of evidence, which looks at so many rows at once."""
    history = run / "history.parquet"
    pq.write_table(change(pq.read_table(history)), history, row_group_size=rows_in_part)
    write_manifest(run)
    monkeypatch.setattr(sealed_history, "GROUPS_PER_CHUNK", 1)
    stored = StoredRun(run, demands_on(spec_of(run)))
    return EVIDENCE.combine(stored, [])


def test_a_history_may_be_looked_at_in_parts(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = of_parts(sealed, lambda table: table, 50, monkeypatch)
    assert verdict.validity is Validity.VALID, verdict.reason
    assert verdict.looked_at["rows"] == pq.read_metadata(sealed / "history.parquet").num_rows


@pytest.mark.parametrize("where", [0, 1], ids=["at the border of two parts", "within a part"])
def test_rows_that_were_exchanged_are_noticed_in_parts(
    where: int, sealed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pq.read_table(sealed / "history.parquet")
    exchanged = with_two_rows_exchanged(whole)
    times = zip(whole["time_ns"].to_pylist(), exchanged["time_ns"].to_pylist(), strict=True)
    at = next(row for row, (before, after) in enumerate(times) if before != after)
    verdict = of_parts(sealed, lambda _: exchanged, at + 1 + where, monkeypatch)
    assert verdict.reason.startswith(f"row {at + 1} is earlier than the row before it")


def test_an_answer_put_into_a_sealed_history_is_noticed(sealed: Path) -> None:
    """Earlier, the buckets of the first judging hid it."""
    history = sealed / "history.parquet"
    table = pq.read_table(history)
    is_read = pc.and_(pc.equal(table["f"].cast(pa.string()), "read"), pc.equal(table["type"], 1))
    value = pc.if_else(is_read, pa.scalar(999_999, pa.int64()), table["value"])
    pq.write_table(table.set_column(6, table.schema.field(6), value), history)
    results = as_object(judge(sealed, None, silent, report=False))
    assert results["checkers"]["linearizability"]["verdict"] == "unknown"
    assert "violations rest on evidence that this run proves wrong" in results["checkers"]["linearizability"]["reason"]
    assert "history.parquet was changed" in results["checkers"]["evidence"]["reason"]


Lines = list[str]


def of_line(event: str, change: Callable[[Any], Any]) -> Callable[[Lines], Lines]:
    """Changes the last line of this event."""

    def changed(lines: Lines) -> Lines:
        at = max(i for i, line in enumerate(lines) if json.loads(line)["event"] == event)
        return [*lines[:at], json.dumps(change(json.loads(lines[at]))) + "\n", *lines[at + 1 :]]

    return changed


def without_a_phase(lines: Lines) -> Lines:
    return [line for line in lines if json.loads(line).get("name") != "main"]


def outcome_without(line: Any, *names: str) -> Any:
    return line | {"outcome": {name: value for name, value in line["outcome"].items() if name not in names}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: lines[:-1], "journal.jsonl was cut short"),
        (lambda lines: lines[:-2], "the harness was ended before the run was over"),
        (lambda lines: lines[1:], "does not belong to test.json, or lacks its beginning"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "the times in journal.jsonl decrease"),
        (without_a_phase, "phases set-up, recovery, final reads, collection ran"),
        (lambda lines: [*lines[:-1], "{}\n"], "'None' is no event of a journal"),
        (of_line("end", lambda line: line | {"rows": line["rows"] + 1}), "and journal.jsonl counts"),
        (of_line("begin", lambda line: line | {"run_id": "another"}), "does not belong to test.json"),
        (of_line("outcome", lambda line: outcome_without(line, "deaths")), "outcome lacks deaths"),
        (
            of_line("outcome", lambda line: line | {"outcome": line["outcome"] | {"final_reads": {}}}),
            "calls 0 final reads ok",
        ),
    ],
)
def test_a_journal_that_was_rewritten_is_noticed_even_under_a_fresh_manifest(
    sealed: Path, change: Callable[[Lines], Lines], words: str
) -> None:
    journal = sealed / "journal.jsonl"
    journal.write_text("".join(change(journal.read_text().splitlines(keepends=True))))
    write_manifest(sealed)
    assert words in why_unknown(sealed)


def test_a_run_without_its_manifest_is_unknown_and_one_of_another_format_is_refused(sealed: Path) -> None:
    (sealed / "manifest.json").unlink()
    assert "there is no manifest.json" in why_unknown(sealed)
    test = json.loads((sealed / "test.json").read_text())
    (sealed / "test.json").write_text(json.dumps(test | {"format": 2}))
    with pytest.raises(BrokenFile, match="the run has format 2, and this version of Krucible judges"):
        judged(sealed)
