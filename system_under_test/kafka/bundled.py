"""Brokers of Apache Kafka on controllers of the bundled KRaft, or on a quorum with controllers of both implementations.

Each node runs a broker and a controller, in two processes.  A topic has `min.insync.replicas=1`: an isolated leader
acknowledges records as soon as the controllers have recorded that it is the only in-sync replica.  So if the quorum
loses or repeats one such record, clients lose acknowledged data; with a correct quorum they lose none.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from system_under_test.kafka.process import CLUSTER_ID, CONTROLLER_PORT, java
from system_under_test.kafka.system import BUGS, OFTEN, SELDOM, Kafka, pairs
from system_under_test.kraft.node.trace import FILE_NAME
from system_under_test.kraft.subject import SNAPSHOTS_OFTEN, Kraft, KraftBrokers
from system_under_test.subject import Bug, Collected
from system_under_test.system import METADATA, Command, OwnNode

FOLDER = "controller"
RELEASE = "4.0"
FEATURES = {"metadata.version": 25, "group.version": 1, "transaction.version": 2}
"""Feature levels of RELEASE, which controllers of both implementations write into an empty log."""
_SNAPSHOTS = {**SNAPSHOTS_OFTEN, "metadata.max.retention.bytes": 1 << 14}
"""Settings with which a broker that was down for ten seconds starts from a snapshot, because its metadata log ends
before the logs of the other nodes begin.
"""
DUMPED = "read-by-kafka"
"""Folder in a node's log folder: it contains copies of a bundled controller's files, and the output of Kafka's own tool
for them.
"""
_FILES = f"$(ls -d {{0}}/{DUMPED}/*.log {{0}}/{DUMPED}/*.checkpoint 2>/dev/null | paste -sd,)"
_COPY = "rm -rf {0}/%s; mkdir -p {0}/%s; cp {1}/*.log {0}/%s; cp {1}/*.checkpoint {0}/%s; " % ((DUMPED,) * 4)
_PACKAGES = "org.apache.kafka.tools", "kafka.tools"
"""Packages of DumpLogSegments: since Kafka 4.3, and in earlier releases."""
_DUMP_S = 60.0
_SUMMARIES = {name: bug.summary for name, bug in {**Kraft.bugs, **KraftBrokers.bugs}.items()}


class KafkaBrokers(Kafka):
    """Settings (`--set`), in addition to the settings of `kafka` that do not concern its controllers:

    min_insync: `min.insync.replicas` of the topics.
    features: levels that are added to FEATURES or replace them, as NAME:LEVEL separated by spaces
    snapshots: "seldom" as in Kafka, or "often"; controllers delete the log before a snapshot
    """

    name = "kafka-brokers"
    summary = "brokers of Apache Kafka on the bundled controllers, asked by librdkafka"
    traces = FILE_NAME
    complaints = rf"{Kafka.complaints}|^(?:cannot start: |Traceback ).*"
    bugs: Mapping[str, Bug] = {
        name: replace(bug, summary=_SUMMARIES[name]) for name, bug in BUGS["kafka-brokers"].items()
    }
    parameters: Mapping[str, str | float] = {
        **{
            name: Kafka.parameters[name]
            for name in (
                "version",
                "home",
                "versions",
                "features",
                "properties",
                "flush",
                "group_protocol",
                "moves",
                "transactions",
            )
        },
        "min_insync": 1.0,
        "snapshots": SELDOM,
    }

    @property
    def _apart(self) -> bool:
        return True

    async def start(self, node: OwnNode, nodes: Sequence[OwnNode]) -> Mapping[str, Command]:
        broker = await self._process(node, nodes, "broker").command(node)
        return {FOLDER: await self._controller(node, nodes), "broker": broker}

    async def _controller(self, node: OwnNode, nodes: Sequence[OwnNode]) -> Command:
        """Write the configuration of a bundled controller, and return the command that formats its folder once and runs
        the controller.
        """
        config: dict[str, Any] = {
            "node_id": node.index + 1,
            "name": node.name,
            "cluster_id": CLUSTER_ID,
            "listen": f"{node.address}:{CONTROLLER_PORT}",
            "peers": {each.name: [each.index + 1, each.address, CONTROLLER_PORT] for each in nodes},
            "data_dir": node.path(FOLDER),
            "trace_dir": node.trace_dir,
            "seed": self.seed,
            "bug": self.bug,
            "process.roles": "controller",
            "brokers": {**KraftBrokers.cluster_settings["brokers"], "features": self._levels()},
            **(_SNAPSHOTS if self._setting("snapshots") == OFTEN else {}),
        }
        file = f"{FOLDER}.json"
        await node.write(file, json.dumps(config, indent=1))
        run = shlex.join([*node.python, "-m", "system_under_test.kraft", "--config", file])
        return f"{{ [ -s {FOLDER}/meta.properties ] || {run} --format --force; }} && exec {run}"

    @property
    def _release(self) -> str:
        return RELEASE

    def _levels(self) -> Mapping[str, int]:
        """Return feature -> level that the controllers write into an empty log."""
        return {**FEATURES, **{name: int(level) for name, level in pairs("features", self._features).items()}}

    def check_settings(self) -> None:
        super().check_settings()
        if wrong := [level for level in pairs("features", self._features).values() if not level.isdecimal()]:
            raise ValueError(f"--set features of {self.name} takes numbers as levels, not {wrong[0]!r:.60}")


class KafkaMixed(KafkaBrokers):
    """Settings (`--set`), in addition to the settings of `kafka-brokers`:

    bundled: number of nodes with bundled controllers, counted from the last one.
    """

    name = "kafka-mixed"
    summary = "brokers of Apache Kafka on controllers of Kafka and bundled ones, which form one quorum"
    traces = ""
    bugs: Mapping[str, Bug] = {}
    parameters: Mapping[str, str | float] = {**KafkaBrokers.parameters, "bundled": 1.0}

    async def _controller(self, node: OwnNode, nodes: Sequence[OwnNode]) -> Command:
        if self._is_bundled(node.index, len(nodes)):
            return await super()._controller(node, nodes)
        return await self._process(node, nodes, "controller").command(node)

    def _is_bundled(self, index: int, nodes: int) -> bool:
        return index >= nodes - int(self._setting("bundled"))

    async def caught_up(self, nodes: Sequence[OwnNode]) -> str | None:
        """Return what is missing.  Once all nodes have caught up, run Kafka's own tool on the files of the bundled
        controllers.
        """
        if (missing := await super().caught_up(nodes)) is None:
            for node in nodes:
                if self._is_bundled(node.index, len(self.nodes)):
                    words = (_COPY + _dump(node.version)).format(node.log_dir, self.logs[METADATA])
                    await node.run(words, timeout_s=_DUMP_S)
        return missing

    def comparisons(self, run_folder: Path, copies: Sequence[Collected]) -> Iterator[Mapping[str, Any]]:
        from system_under_test.kraft.collected.two_implementations import files_in_dump, read_alike, same_bytes

        last = {copy.node: copy for copy in sorted(copies, key=lambda copy: copy.copy)}
        ours = [n for n in last if self._is_bundled(int(n[1:]) - 1, len(last))]
        for node in ours:
            folder = run_folder / "nodes" / node / DUMPED
            text = (folder / "dump.txt").read_text(errors="replace") if (folder / "dump.txt").is_file() else ""
            found = files_in_dump(text)
            for path in sorted(each for each in folder.glob("*") if each.suffix in (".log", ".checkpoint")):
                count, differs = read_alike(path, found[path.name]) if path.name in found else (0, "it was not read")
                differs = differs and f"{path.name}: {differs}"
                yield _row(node, "records that DumpLogSegments reads as we do", count, differs)
            if not found:
                yield _row(node, "records that DumpLogSegments reads as we do", 0, missing="it did not run")
        for node, other in product([n for n in last if n not in ours], ours):
            folders = [last[each].folder / self.logs[METADATA] for each in (node, other)]
            count, differs = same_bytes(*folders)
            missing = None if count or differs else "their logs have no batch in common"
            yield _row(f"{node}, {other}", "batches of equal bytes", count, differs, missing)


def _dump(version: str) -> str:
    """Return the command that reads the copied files."""
    words = "DumpLogSegments --cluster-metadata-decoder --files"
    return " || ".join(java(f"{each}.{words} {_FILES} > {{0}}/{DUMPED}/dump.txt", version) for each in _PACKAGES)


def _row(
    nodes: str, what: str, compared: int, differs: str | None = None, missing: str | None = None
) -> dict[str, Any]:
    return {"nodes": nodes, "what": what, "compared": compared, "differs": differs, "missing": missing}
