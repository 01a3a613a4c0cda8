"""Replicas of a topic: what brokers wrote is equal, and each rule finds a difference that was made on purpose."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkers import replicas as rules
from checkers.base.columns import COMPARISONS, COPIES
from checkers.base.stored_run import Demands, StoredRun
from checkers.base.verdict import Validity, Verdict
from checkers.judging import judge_run
from checkers.kernels.kafka_files import crc32c
from checkers.replicas import TWO_IMPLEMENTATIONS
from system_under_test.kraft.collected.two_implementations import write_topics
from system_under_test.subject import Collected

Entry = tuple[int, int, str]
"""Base offset, epoch, content of a batch of two records."""
LOG = [(0, 1, "a"), (2, 1, "b"), (4, 3, "c")]
EPOCHS = [(1, 0), (3, 4)]


def batch(base: int, epoch: int, content: str, compression: int = 0) -> bytes:
    behind_crc = struct.pack(">hiqqqhii", compression, 1, 0, 0, -1, -1, -1, 2) + content.encode()
    crc = crc32c(np.frombuffer(behind_crc, np.uint8))
    return struct.pack(">qiibI", base, 9 + len(behind_crc), epoch, 2, crc) + behind_crc


def replica(
    folder: Path,
    log: Sequence[Entry] = LOG,
    high_watermark: int = 6,
    epochs: Sequence[tuple[int, int]] = EPOCHS,
    cleaned: int = 0,
) -> Path:
    """Write what a broker's log directory holds of partition k0-0."""
    partition = folder / "kafka" / "k0-0"
    partition.mkdir(parents=True)
    (folder / "kafka" / "__cluster_metadata-0").mkdir()
    (folder / "kafka" / "k1-0.5f-delete").mkdir()
    (partition / "00000000000000000000.log").write_bytes(b"".join(batch(*entry, compression=4) for entry in log))
    (partition / "partition.metadata").write_text("version: 0\ntopic_id: abc\n")
    for path, lines in {
        partition / "leader-epoch-checkpoint": [f"{epoch} {start}" for epoch, start in epochs],
        folder / "kafka" / "replication-offset-checkpoint": [f"k0 0 {high_watermark}"],
        folder / "kafka" / "cleaner-offset-checkpoint": [f"k0 0 {cleaned}"] if cleaned else [],
    }.items():
        path.write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    return folder


def judged(root: Path, replicas: Mapping[str, Path]) -> Verdict:
    copies = [Collected(0, "final", node, "stopped", folder) for node, folder in replicas.items()]
    write_topics(root, copies, "kafka/*-*")
    row = dict.fromkeys(COPIES.names) | {"copy": 0, "when": "final", "state": "stopped", "log_end": 0}
    row |= {"torn_bytes": 0, "quorum_epoch": 0, "trace_seq": -1}
    pq.write_table(pa.Table.from_pylist([row | {"node": node} for node in replicas], COPIES), root / COPIES_FILE)
    (root / "tables" / "log").mkdir()
    for node in replicas:
        pq.write_table(pa.table({"copy": pa.array([], pa.int16())}), root / "tables" / "log" / f"{node}.parquet")
    run = StoredRun(root, Demands(servers=("n1", "n2"), logs=True))
    return judge_run(run, [rules.EQUAL_REPLICAS])["equal-replicas"]


COPIES_FILE = "tables/copies.parquet"


def test_equal_replicas_are_valid_whatever_lies_above_the_high_watermark(tmp_path: Path) -> None:
    behind = replica(tmp_path / "2", [*LOG, (6, 3, "tail")], high_watermark=4)
    verdict = judged(tmp_path, {"n1": replica(tmp_path / "1", [*LOG, (6, 3, "x")]), "n2": behind})
    assert verdict.validity is Validity.VALID, verdict
    assert verdict.looked_at == {"partitions": 1, "batches compared": 2, "epochs": 4}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        pytest.param({"log": [LOG[0], (2, 1, "B"), LOG[2]]}, rules.REPLICAS_DIFFER, id="another content"),
        pytest.param(
            {"log": [LOG[0], (2, 2, "b"), LOG[2]], "epochs": [(1, 0), (2, 2), (3, 4)]},
            rules.REPLICAS_DIFFER,
            id="epoch",
        ),
        pytest.param({"log": [LOG[0], LOG[2]]}, rules.LACKS, id="a batch is missing"),
        pytest.param({"epochs": [(1, 0), (3, 2)]}, rules.WRONG_EPOCH, id="an epoch that begins too early"),
        pytest.param({"epochs": [(1, 0)]}, rules.WRONG_EPOCH, id="an epoch that was not noted"),
    ],
)
def test_each_rule_finds_its_violation(tmp_path: Path, other: dict, expected: str) -> None:
    verdict = judged(tmp_path, {"n1": replica(tmp_path / "1"), "n2": replica(tmp_path / "2", **other)})
    assert [witness.kind for witness in verdict.witnesses] == [expected]


def test_what_compaction_may_have_rewritten_is_not_compared(tmp_path: Path) -> None:
    cleaned = replica(tmp_path / "2", [(2, 1, "B"), LOG[2]], cleaned=4)
    assert judged(tmp_path, {"n1": replica(tmp_path / "1"), "n2": cleaned}).validity is Validity.VALID


def test_missing_evidence_is_unknown(tmp_path: Path) -> None:
    damaged = replica(tmp_path / "2")
    path = damaged / "kafka" / "k0-0" / "00000000000000000000.log"
    path.write_bytes(path.read_bytes().replace(b"c", b"d"))
    verdict = judged(tmp_path, {"n1": replica(tmp_path / "1"), "n2": damaged})
    assert verdict.validity is Validity.UNKNOWN
    assert "cannot be read from offset 4 on" in verdict.reason
    (tmp_path / "alone").mkdir()
    alone = judged(tmp_path / "alone", {"n1": tmp_path / "1"})
    assert "n2 delivered no logs of topics" in alone.reason


@pytest.mark.parametrize(("high_watermark", "expected"), [(0, Validity.NOT_APPLICABLE), (6, Validity.UNKNOWN)])
def test_topics_without_a_record_leave_nothing_to_compare_unless_one_was_committed(
    tmp_path: Path, high_watermark: int, expected: Validity
) -> None:
    empty = {"log": [], "epochs": [], "high_watermark": high_watermark}
    folders = {f"n{number}": replica(tmp_path / str(number), **empty) for number in (1, 2)}
    assert judged(tmp_path, folders).validity is expected


@pytest.mark.parametrize(
    ("differs", "missing", "expected"),
    [(None, None, Validity.VALID), ("at 7", None, Validity.INVALID), (None, "no Java", Validity.UNKNOWN)],
)
def test_implementations_that_disagree_are_found(
    tmp_path: Path, differs: str | None, missing: str | None, expected: Validity
) -> None:
    (tmp_path / "tables" / "log").mkdir(parents=True)
    pq.write_table(pa.table({"copy": pa.array([], pa.int16())}), tmp_path / "tables" / "log" / "n1.parquet")
    run = StoredRun(tmp_path, Demands(servers=("n1",), logs=True))
    assert judge_run(run, [TWO_IMPLEMENTATIONS])["two-implementations"].validity is Validity.UNKNOWN
    row = {"nodes": "n1, n2", "what": "batches", "compared": 3, "differs": differs, "missing": missing}
    pq.write_table(pa.Table.from_pylist([row], COMPARISONS), StoredRun(tmp_path).comparisons)
    verdict = judge_run(StoredRun(tmp_path, run.demands), [TWO_IMPLEMENTATIONS])["two-implementations"]
    assert verdict.validity is expected
    assert verdict.looked_at["batches"] == 3
