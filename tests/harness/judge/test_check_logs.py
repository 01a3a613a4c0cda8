"""`check-logs` over data directories someone collected, and over what is none."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from click.testing import CliRunner, Result
from journals import write_header, write_journal
from recorded_runs import unpacked

from harness.cli.main import cli
from system_under_test.kraft.collected.files import LOG_FOLDER, QUORUM_STATE
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.small_files import encode_state as encode_quorum_state
from system_under_test.kraft.raft.messages import Batch, LeaderChange, QuorumState
from system_under_test.kraft.records.metadata import TOPIC_RESOURCE, ConfigRecord, encode


def check_logs(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, ["check-logs", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def log_of(*writes: tuple[int, int]) -> list[bytes]:
    """A leader's own record, then one write each: (epoch, value)."""
    batches = [codec.encode(Batch(0, 1, 1, LeaderChange(1, (1, 2, 3), (1, 2))), 1000)]
    for offset, (epoch, value) in enumerate(writes, 1):
        record = encode(ConfigRecord(TOPIC_RESOURCE, "k0", "retention.ms", str(value)))
        batches.append(codec.encode_values(offset, epoch, [record], 1000 + offset))
    return batches


def data_directory(folder: Path, batches: list[bytes], epoch: int = 2) -> None:
    log = folder / LOG_FOLDER
    log.mkdir(parents=True)
    (log / "00000000000000000000.log").write_bytes(b"".join(batches))
    (log / QUORUM_STATE).write_bytes(encode_quorum_state(QuorumState(epoch, 1, None), "cluster", (1, 2, 3)))


def test_logs_of_which_one_is_behind_agree(tmp_path: Path) -> None:
    for node, length in (("n1", 4), ("n2", 4), ("n3", 2)):
        data_directory(tmp_path / node / "data", log_of((1, 7), (1, 8), (2, 9))[:length])
    result = check_logs(tmp_path)
    assert result.stdout.startswith(f"valid    {tmp_path}")
    assert "no manifest binds these files, so they were judged as they are" in result.stdout
    assert result.exit_code == 0


def test_a_log_damaged_in_its_middle_is_no_pass(tmp_path: Path) -> None:
    data_directory(tmp_path / "n1", log_of((1, 7), (1, 8)))
    damaged = log_of((1, 7), (1, 8))
    damaged[1] = damaged[1][:-1] + bytes([damaged[1][-1] ^ 1])
    data_directory(tmp_path / "n2", damaged)
    result = check_logs(tmp_path)
    assert "copy 0 of n2 is unreadable" in result.stdout
    assert result.exit_code == 2


def test_what_holds_no_two_logs_is_never_valid(tmp_path: Path) -> None:
    """Random bytes, folders without a log, empty logs, one node alone, and one of three nodes without an entry."""
    noise, bare, empty, alone, lacking = (tmp_path / name for name in ("noise", "bare", "empty", "alone", "lacking"))
    for number, node in enumerate(("n1", "n2", "n3")):
        data_directory(noise / node, [Random(number).randbytes(3000)])
        (bare / node / LOG_FOLDER).mkdir(parents=True)
        data_directory(empty / node, [])
        data_directory(lacking / node, log_of((1, 7))[: 2 * (number < 2)])
    data_directory(alone / "n1", log_of((1, 7), (1, 8)))
    for folder, words in (
        (noise, "00000000000000000000.log, byte 0"),
        (bare, "contains no segment"),
        (empty, "no logs of two nodes have an offset in common"),
        (alone, "is the only server"),
        (lacking, "no copy of the log of n3 holds an entry"),
    ):
        result = check_logs(folder)
        assert (result.exit_code, words in result.stdout) == (2, True), result.stdout


def test_one_wrong_length_byte_is_no_torn_tail(tmp_path: Path) -> None:
    for node in ("n1", "n2", "n3"):
        data_directory(tmp_path / node, log_of(*((1, value) for value in range(200))))
    path = tmp_path / "n2" / LOG_FOLDER / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    at = len(log_of()[0])
    data[at + 8] ^= 0x40
    path.write_bytes(bytes(data))
    result = check_logs(tmp_path)
    assert result.exit_code == 2
    assert f"copy 0 of n2 is unreadable: 00000000000000000000.log, byte {at}" in result.stdout


def numbered(batches: int, seed: int = 0) -> bytes:
    """A log of one write each, made at once: the CRC covers the record and not the offset, so one fits all."""
    record = encode(ConfigRecord(TOPIC_RESOURCE, "k0", "retention.ms", str(seed)))
    raw = np.tile(np.frombuffer(codec.encode_values(0, 1, [record], 1000), np.uint8), (batches, 1))
    raw[:, :8] = np.arange(batches, dtype=">i8").view(np.uint8).reshape(batches, 8)
    return raw.tobytes()


def test_long_logs_over_many_row_groups_and_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three nodes, 30,000 batches each, two segments; one entry differs far in."""
    monkeypatch.setattr("system_under_test.kraft.collected.files.ROW_GROUP", 4_096)
    monkeypatch.setattr("harness.cli.checking.QUIET_S", 0.0)
    monkeypatch.setattr("harness.cli.checking.LINE_EVERY_S", 0.0)
    data, size = numbered(30_000), len(numbered(1))
    for node in ("n1", "n2", "n3"):
        data_directory(tmp_path / node, [data[: size * 20_000]])
        (tmp_path / node / LOG_FOLDER / "00000000000000020000.log").write_bytes(data[size * 20_000 :])
    result = check_logs("--json", tmp_path)
    assert json.loads(result.stdout)["details"]["log-matching"]["looked_at"]["entries"] == 90_000
    assert result.exit_code == 0
    assert "read 3 of 3 copies" in result.stderr and "parts" in result.stderr
    other = bytearray(data[size * 20_000 :])
    other[size * 5_000 : size * 5_001] = numbered(1, seed=7)
    other[size * 5_000 : size * 5_000 + 8] = (25_000).to_bytes(8, "big")
    (tmp_path / "n2" / LOG_FOLDER / "00000000000000020000.log").write_bytes(bytes(other))
    result = check_logs("--json", tmp_path)
    assert result.exit_code == 1
    assert {w["facts"]["offset"] for w in json.loads(result.stdout)["witness"]} == {25_000}


def test_entries_that_differ_below_a_shared_epoch_are_reported_and_drawn_side_by_side(tmp_path: Path) -> None:
    data_directory(tmp_path / "n1", log_of((1, 7), (1, 8), (2, 9)))
    data_directory(tmp_path / "n2", log_of((1, 7), (1, 5), (2, 9)))
    reported = check_logs("--json", tmp_path)
    entry = json.loads(reported.stdout)
    assert (entry["verdict"], reported.exit_code) == ("invalid", 1)
    assert all(word in entry["witness"][0]["summary"] for word in ("n1", "n2", "2"))
    result = check_logs("--explain", "--report", tmp_path / "page.html", tmp_path)
    lines = result.stdout.splitlines()
    [differs] = [line for line in lines if "≠" in line]
    assert differs.split()[0] == "2"
    assert differs.count("≠ epoch 1") == 2
    page = (tmp_path / "page.html").read_text()
    assert page.count("differs") > 1
    assert "Folders" in page
    assert "k0 = 5" in page


def test_a_run_is_valid_without_a_note_where_a_manifest_binds_its_files(tmp_path: Path) -> None:
    run = unpacked("kraft-partition", tmp_path)
    result = check_logs(run)
    assert result.exit_code == 0 and "manifest" not in result.stdout, result.stdout
    (run / "manifest.json").unlink()
    result = check_logs(run)
    assert result.exit_code == 0 and "no manifest binds these files" in result.stdout


@pytest.mark.parametrize("name", ["quorum-state", "trace"])
def test_a_file_that_differs_from_the_manifest_makes_logs_unknown(tmp_path: Path, name: str) -> None:
    run = unpacked("kraft-partition", tmp_path)
    changed = next((run / "trace").iterdir()) if name == "trace" else next(run.rglob(QUORUM_STATE))
    changed.write_bytes(changed.read_bytes() + b" ")
    result = check_logs(run)
    assert result.exit_code == 2
    assert f"manifest.json: {changed.relative_to(run)} was changed after the run" in result.stdout


def test_a_folder_without_logs_or_of_a_system_without_such_logs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = check_logs(tmp_path)
    assert (result.exit_code, "error: holds neither a run" in result.stdout) == (3, True)
    write_header(tmp_path, spec={"subject": "my_system.py"})
    write_journal(tmp_path, outcome={"declares": {"logs": False}})
    result = check_logs(tmp_path)
    assert result.exit_code == 3
    assert "is a run of my_system.py, which has no logs of Kafka's format" in " ".join(result.output.split())
