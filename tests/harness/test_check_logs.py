"""`check-logs` over data directories someone collected, and over what is none."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from harness.cli import cli
from system_under_test.kraft.controller.records import TOPIC_RESOURCE, ConfigRecord, encode
from system_under_test.kraft.files import LOG_FOLDER, QUORUM_STATE
from system_under_test.kraft.log import batch as codec
from system_under_test.kraft.log.quorum_state import encode as encode_quorum_state
from system_under_test.kraft.raft.messages import LeaderChange, QuorumState


def check_logs(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, ["check-logs", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def log_of(*writes: tuple[int, int]) -> list[bytes]:
    """A leader's own record, then one write each: (epoch, value)."""
    batches = [codec.encode_leader_change(0, 1, LeaderChange(1, (1, 2, 3), (1, 2)), 1000)]
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
    assert result.exit_code == 0


def test_logs_that_differ_below_a_shared_epoch_are_told_with_nodes_and_offset(tmp_path: Path) -> None:
    data_directory(tmp_path / "n1", log_of((1, 7), (1, 8), (2, 9)))
    data_directory(tmp_path / "n2", log_of((1, 7), (1, 5), (2, 9)))
    result = check_logs("--json", tmp_path)
    assert result.exit_code == 1
    entry = json.loads(result.stdout)
    assert entry["verdict"] == "invalid"
    words = entry["witness"][0]["summary"]
    assert "n1" in words
    assert "n2" in words
    assert "2" in words


def test_a_log_damaged_in_its_middle_is_no_pass(tmp_path: Path) -> None:
    data_directory(tmp_path / "n1", log_of((1, 7), (1, 8)))
    damaged = log_of((1, 7), (1, 8))
    damaged[1] = damaged[1][:-1] + bytes([damaged[1][-1] ^ 1])
    data_directory(tmp_path / "n2", damaged)
    result = check_logs(tmp_path)
    assert "copy 0 of n2 is unreadable" in result.stdout
    assert result.exit_code == 2


def test_a_folder_without_logs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = check_logs(tmp_path)
    assert "error: holds neither a run" in result.stdout
    assert result.exit_code == 3
