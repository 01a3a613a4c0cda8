"""Topics that are deleted among real nodes: what a replay of the log shows must be what each node holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from node_cluster import VOTERS, Boot, Cluster, create, set_retention
from waiting import eventually

from checkers.base.checker import Budget, Part
from checkers.raft.replay_equals_live import KIND, REPLAY_EQUALS_LIVE
from system_under_test.kraft.collected.files import replayed, write_replayed
from system_under_test.kraft.collected.trace_files import write_trace
from system_under_test.kraft.controller.topics import delete_topics
from system_under_test.kraft.log.log import FOLDER

pytestmark = pytest.mark.virtual_time


def judged_replays(cluster: Cluster, folder: Path) -> tuple[list[str], int]:
    """What `replay-equals-live` finds at each node, and how many states it compared."""
    kinds, compared = [], 0
    for voter in VOTERS:
        disk = folder / f"n{voter}"
        for path, content in cluster.disks[voter].files().items():
            (disk / path).parent.mkdir(parents=True, exist_ok=True)
            (disk / path).write_bytes(content)
        source, trace, states = (folder / f"n{voter}.{kind}" for kind in ("jsonl", "parquet", "states.parquet"))
        source.write_text("".join(json.dumps(row) + "\n" for row in cluster.traces[voter]))
        write_trace(source, trace, 0)
        write_replayed(states, f"n{voter}", 1, replayed(disk / FOLDER))
        copy = {"copy": 1, "trace_seq": cluster.traces[voter][-1]["seq"]}
        found = REPLAY_EQUALS_LIVE.judge(
            Part((str(trace), str(states)), {"node": f"n{voter}", "copies": [copy]}), Budget()
        )
        kinds += [witness.kind for witness in found.witnesses]
        compared += found.compared
    return kinds, compared


@pytest.mark.parametrize("bug", ["", "deletes-topic-keeps-configs"])
async def test_the_configs_of_a_deleted_topic_are_gone_and_stay_with_the_bug(
    boot: Boot, bug: str, tmp_path: Path
) -> None:
    cluster = boot(bug)
    leader = await cluster.leader()
    for decide in (create("t"), set_retention("t", 4711), lambda image: delete_topics(image, ["t"]), create("t")):
        await leader.write(decide)
    await eventually(lambda: all(n.applied_offset == leader.log.end_offset for n in cluster.network.nodes.values()))
    inherited = {"retention.ms": "4711"} if bug else {}
    assert all(node.committed_image().configs("t") == inherited for node in cluster.network.nodes.values())
    await cluster.close()
    kinds, compared = judged_replays(cluster, tmp_path)
    assert compared > len(VOTERS)
    assert set(kinds) == ({KIND} if bug else set())
