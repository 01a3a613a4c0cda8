"""The small files of a node: quorum-state, meta.properties, its trace, its configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from power_loss import at_every_moment

from simulation.disk import VolatileDisk
from system_under_test.kraft.collected import log_files
from system_under_test.kraft.log import small_files
from system_under_test.kraft.log.log import FOLDER
from system_under_test.kraft.log.small_files import QuorumStateFile, UnreadableQuorumState
from system_under_test.kraft.node import config
from system_under_test.kraft.node.assembly import CannotStart, assemble
from system_under_test.kraft.node.config import AlreadyFormatted, format_directory
from system_under_test.kraft.node.process import _ports, run
from system_under_test.kraft.node.trace import FILE_NAME, Trace, TraceOnDisk, UnreadableTrace, continue_trace
from system_under_test.kraft.raft.messages import Batch, QuorumState, ReplicaKey

ids = st.none() | st.integers(0, 2**31 - 1)
states = st.builds(QuorumState, st.integers(0, 2**31 - 1), ids, st.none() | st.builds(ReplicaKey, st.integers(0, 99)))


@given(states)
def test_quorum_state_is_one_line_of_kafkas_json(state: QuorumState) -> None:
    data = small_files.encode_state(state, "cluster", (1, 2))
    assert small_files.decode_state(data) == state
    fields = json.loads(data)
    assert fields.keys() == {
        "clusterId",
        "leaderId",
        "leaderEpoch",
        "votedId",
        "appliedOffset",
        "currentVoters",
        "data_version",
    }
    assert fields["currentVoters"] == [{"voterId": 1}, {"voterId": 2}]
    assert b"\n" not in data


@pytest.mark.parametrize("kind", ["lose", "keep", "torn", "reorder"])
def test_a_vote_is_never_half_written(kind: str) -> None:
    """Power lost before every change of the disk: the old state or the new one, and the new one once it returned."""
    old, new = QuorumState(3, 1, None), QuorumState(4, None, ReplicaKey(2))

    def stored(disk: VolatileDisk) -> QuorumStateFile:
        disk.make_dir("m")
        file = QuorumStateFile(disk, "m", "c", (1, 2))
        file.store(old)
        return file

    for disk, returned in at_every_moment(stored, lambda file: file.store(new)):
        for seed in range(5):
            survivor = disk.crash(kind, Random(seed))  # type: ignore[arg-type]
            found = QuorumStateFile(survivor, "m", "c", (1, 2)).load()
            assert found in ((new,) if returned else (old, new))


@pytest.mark.parametrize("state", [QuorumState(3, 9), QuorumState(3, None, ReplicaKey(9))])
def test_a_state_that_names_no_voter_is_refused(state: QuorumState) -> None:
    disk = VolatileDisk()
    disk.make_dir("m")
    QuorumStateFile(disk, "m", "c", (1, 2, 9)).store(state)
    with pytest.raises(UnreadableQuorumState, match=r"9, but the voters are \[1, 2\]"):
        QuorumStateFile(disk, "m", "c", (1, 2)).load()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"leaderEpoch":1}', b"null"])
def test_a_state_that_cannot_be_read_is_refused(content: bytes) -> None:
    with pytest.raises(UnreadableQuorumState, match="quorum-state holds"):
        small_files.decode_state(content)


def test_a_state_of_another_version_is_refused() -> None:
    data = small_files.encode_state(QuorumState(), "c", (1,)).replace(b'"data_version":0', b'"data_version":2')
    with pytest.raises(UnreadableQuorumState, match="data_version 2"):
        small_files.decode_state(data)


def test_meta_properties_belong_to_one_node_of_one_cluster() -> None:
    disk = VolatileDisk()
    mine = small_files.MetaProperties("cluster", 3, small_files.derived_uuid("d", 3))
    with pytest.raises(small_files.WrongDirectory, match="format it first"):
        small_files.read_properties(disk, "cluster", 3)
    small_files.write_properties(disk, mine)
    assert small_files.read_properties(disk, "cluster", 3) == mine
    for cluster, node in (("other", 3), ("cluster", 4)):
        with pytest.raises(small_files.WrongDirectory, match="belongs to node 3 of cluster cluster"):
            small_files.read_properties(disk, cluster, node)


@given(st.uuids())
def test_uuids_are_written_as_kafka_does(value: object) -> None:
    text = small_files.kafka_uuid(value)  # type: ignore[arg-type]
    assert len(text) == 22
    assert small_files.parse_uuid(text) == value


def test_a_trace_goes_on_across_restarts_and_torn_rows(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    clock = count(100)
    first = continue_trace(TraceOnDisk(path), lambda: next(clock))
    first.row("start", 0, offset=0, hash=-5)
    first.row("role", 1, role="leader", peer="n1", offset=0)
    whole = path.read_bytes()
    for torn in (b"", b'{"seq":2', b'{"seq":2,"inc":0,"t":1,"event":"stop","epoch":1}'):
        path.write_bytes(whole + torn)
        again = continue_trace(TraceOnDisk(path), lambda: next(clock))
        assert again.incarnation == 1
        again.row("stop", 1)
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        assert [(r["seq"], r["inc"], r["event"]) for r in rows] == [(0, 0, "start"), (1, 0, "role"), (2, 1, "stop")]
        assert rows[0] == {"seq": 0, "inc": 0, "t": 100, "event": "start", "epoch": 0, "offset": 0, "hash": -5}
    path.write_bytes(b"nonsense\n")
    with pytest.raises(UnreadableTrace, match="no row of a trace"):
        continue_trace(TraceOnDisk(path), lambda: 0)


@given(
    st.integers(0), st.none() | st.integers(), st.none() | st.integers(), st.none() | st.text(), st.none() | st.text()
)
def test_a_row_of_a_trace_is_json_without_what_is_absent(
    epoch: int, offset: int | None, hash: int | None, peer: str | None, detail: str | None
) -> None:
    lines: list[bytes] = []
    Trace(lines.append, lambda: 7, 3, 1).row(
        "role", epoch, offset=offset, hash=hash, peer=peer, role=peer, detail=detail
    )
    fields = {"offset": offset, "hash": hash, "peer": peer, "role": peer, "detail": detail}
    present = {name: value for name, value in fields.items() if value is not None}
    [line] = lines
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    assert list(json.loads(line).items()) == [
        *{"seq": 3, "inc": 1, "t": 7, "event": "role", "epoch": epoch}.items(),
        *present.items(),
    ]


GOOD = {
    "node_id": 1,
    "name": "n1",
    "cluster_id": "c",
    "listen": "127.0.0.1:9092",
    "peers": {"n2": [2, "127.0.0.2", 9092]},
    "data_dir": "d",
    "trace_dir": "t",
    "seed": 1,
    "bug": None,
}


def formatted(root: Path, **more: object) -> config.Config:
    return config.parse({**GOOD, "data_dir": str(root / "data"), "trace_dir": str(root / "trace"), **more})


def test_a_formatted_directory_is_not_erased_by_chance(tmp_path: Path) -> None:
    settings = formatted(tmp_path)
    format_directory(settings)
    log = settings.data_dir / "__cluster_metadata-0" / "00000000000000000000.log"
    log.write_bytes(b"another file of value")
    with pytest.raises(AlreadyFormatted, match="--force erases it"):
        format_directory(settings)
    (settings.data_dir / small_files.META_PROPERTIES).unlink()
    with pytest.raises(AlreadyFormatted, match="it contains __cluster_metadata-0"):
        format_directory(settings)
    assert log.exists()
    format_directory(settings, force=True)
    assert log.read_bytes() == b""


def test_a_disk_that_was_wiped_is_another_disk(tmp_path: Path) -> None:
    """Its identity followed from the seed: after the loss of its votes it could vote again as its old self."""
    settings = formatted(tmp_path)
    assert format_directory(settings) != format_directory(settings, force=True)


@pytest.mark.parametrize("bug", [None, "wiped-disk-keeps-id"])
def test_a_new_disk_of_a_node_has_an_id_of_its_own_and_the_trace_goes_on(tmp_path: Path, bug: str | None) -> None:
    settings = replace(formatted(tmp_path), bug=bug)
    before = format_directory(settings)
    settings.trace_dir.mkdir()
    trace = settings.trace_dir / FILE_NAME
    trace.write_text("a row")
    (settings.data_dir / "of-a-node").mkdir()
    after = format_directory(settings, force=True, keeps_trace=True)
    assert (after == before) == (bug is not None)
    assert trace.read_text() == "a row" and not (settings.data_dir / "of-a-node").exists()
    format_directory(settings, force=True)
    assert not trace.exists()


def test_a_disk_that_was_just_formatted_holds_an_empty_log(tmp_path: Path) -> None:
    """A copy of a wiped disk was taken before the node had started, and every checker of logs was unknown."""
    settings = formatted(tmp_path)
    format_directory(settings)
    log = log_files.read_log(settings.data_dir / FOLDER)
    assert (log.error, log.log_end, log.torn_bytes) == (None, 0, 0)


async def test_a_node_whose_disk_was_formatted_anew_starts_only_where_voters_can_change(tmp_path: Path) -> None:
    before = format_directory(formatted(tmp_path))
    now = format_directory(formatted(tmp_path), force=True)
    anew, starts = "was formatted anew", "cannot listen on"
    for known, dynamic, expected in ((before, False, anew), (now, False, starts), (before, True, starts)):
        names = {"directories": {"n1": small_files.kafka_uuid(known)}, "listen": "192.0.2.1:1", "dynamic": dynamic}
        with pytest.raises(CannotStart, match=expected):
            await run(formatted(tmp_path, **names))


async def test_the_log_has_segments_of_the_size_that_the_configuration_names(tmp_path: Path) -> None:
    settings = formatted(tmp_path, segment_bytes=300, cached_bytes=100)
    format_directory(settings)
    settings.trace_dir.mkdir()
    log = assemble(settings, _ports(settings)).quorum._log
    for offset in range(9):
        log.append([Batch(offset, 1, 1, (b"x" * 60,))], 0)
    log.flush()
    segments = sorted(path.name for path in (settings.data_dir / "__cluster_metadata-0").glob("*.log"))
    assert len(segments) > 2 and segments[0] == "00000000000000000000.log"
    assert [batch.base_offset for batch in log.read(0, 1 << 20)] == list(range(9)), "most of it from the disk"
    log.close()


def test_a_configuration_need_not_repeat_the_node_itself() -> None:
    with_me = {**GOOD, "peers": {"n1": [1, "127.0.0.1", 9092], **GOOD["peers"]}}  # type: ignore[dict-item]
    assert config.parse(GOOD) == config.parse(with_me)
    assert tuple(config.parse(GOOD).peers) == (1, 2)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"listen": "127.0.0.1"}, "invalid literal"),
        ({"listen": 5}, "rpartition"),
        ({"peers": {"n2": [2]}}, "not enough values"),
        ({"peers": {"n2": [1, "h", 1]}}, "is n1 here and n2 among the peers"),
        ({"peers": {"n2": [2, "h", 1], "n3": [2, "h", 2]}}, "share a name or an id"),
        ({"peers": {"n1": [2, "h", 1]}}, "share a name or an id"),
        ({config.AUTO_JOIN: True}, "needs voters that can change"),
        ({"process.roles": "broker", "brokers": {}, "peers": {"n1": [1, "h", 1]}}, "n1 is one of the voters"),
        ({"process.roles": "broker", "brokers": {}, config.AUTO_JOIN: True, "dynamic": True}, "must name controller"),
        ({"process.roles": "clerk", "brokers": {}}, "it can name controller and broker"),
        ({"bug": "none such"}, "no planted bug 'none such'"),
        ({"directories": {"n7": "A" * 22}}, "'n7', which is no peer"),
        ({"directories": {"n1": "?"}}, "padding|base64|characters"),
    ],
)
def test_a_bad_configuration_is_refused_in_words(change: dict[str, object], expected: str) -> None:
    with pytest.raises(config.BadConfig, match=expected):
        config.parse({**GOOD, **change})
