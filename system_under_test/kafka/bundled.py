"""Brokers of Apache Kafka whose controllers are the bundled ones, or controllers of both kinds in one quorum.

Each node runs a broker and a controller, in two processes.  A topic has `min.insync.replicas=1`: a leader that goes on
alone acknowledges records as soon as the controllers have noted that it is alone.  So a quorum that forgets or doubles
one decision costs a client its records, and one that keeps its promises costs none.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from system_under_test.kafka.process import CLUSTER_ID, CONTROLLER_PORT
from system_under_test.kafka.system import LOST, Kafka
from system_under_test.kraft.controller import decisions as of_controller
from system_under_test.kraft.node.trace import FILE_NAME
from system_under_test.kraft.raft import decisions as of_raft
from system_under_test.kraft.subject import Kraft, KraftBrokers
from system_under_test.subject import Bug
from system_under_test.system import Command, OwnNode

FOLDER = "controller"
RELEASE = "4.0"
FEATURES = {"metadata.version": 25, "group.version": 1, "transaction.version": 2}
"""The levels of RELEASE, which both kinds of controllers write into an empty log."""
_SHOWN_BY: Mapping[str, tuple[str, ...]] = {
    of_raft.MINORITY_COMMIT: ("partition",),
    of_controller.UNCLEAN_BY_DEFAULT: ("partition",),
}
_BUNDLED = {**Kraft.bugs, **KraftBrokers.bugs}


def _lost(name: str) -> Bug:
    """Return a planted bug of the bundled controllers, as a client of Kafka meets it."""
    told = {"found_by": "kafka-read-to-end", "witness_kinds": LOST, "workloads": ("kafka-queue",)}
    return replace(_BUNDLED[name], **told, shown_by=_SHOWN_BY[name])  # type: ignore[arg-type]


class KafkaBrokers(Kafka):
    """Settings (`--set`), besides `version`, `home`, `properties` and `flush` of `kafka`:

    min_insync: `min.insync.replicas` of the topics.
    """

    name = "kafka-brokers"
    summary = "brokers of Apache Kafka on the bundled controllers, asked by librdkafka"
    traces = FILE_NAME
    complaints = rf"{Kafka.complaints}|^(?:cannot start: |Traceback ).*"
    bugs: Mapping[str, Bug] = {name: _lost(name) for name in _SHOWN_BY}
    parameters: Mapping[str, str | float] = {
        **{name: Kafka.parameters[name] for name in ("version", "home", "properties", "flush")},
        "min_insync": 1.0,
    }

    @property
    def _apart(self) -> bool:
        return True

    async def start(self, node: OwnNode, nodes: Sequence[OwnNode]) -> Mapping[str, Command]:
        broker = await self._process(node, nodes, "broker").command(node)
        return {FOLDER: await self._controller(node, nodes), "broker": broker}

    async def _controller(self, node: OwnNode, nodes: Sequence[OwnNode]) -> Command:
        """Write the configuration of a bundled controller; return the line that formats its folder once and runs it."""
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
            "brokers": {**KraftBrokers.cluster_settings["brokers"], "features": FEATURES},
        }
        file = f"{FOLDER}.json"
        await node.write(file, json.dumps(config, indent=1))
        run = shlex.join([*node.python, "-m", "system_under_test.kraft", "--config", file])
        return f"{{ [ -s {FOLDER}/meta.properties ] || {run} --format --force; }} && exec {run}"

    def _format_options(self) -> Sequence[str]:
        return ["--release-version", RELEASE]


class KafkaMixed(KafkaBrokers):
    """Settings (`--set`), besides those of `kafka-brokers`:

    bundled: number of nodes, from the last one on, whose controllers are the bundled ones.
    """

    name = "kafka-mixed"
    summary = "brokers of Apache Kafka on controllers of Kafka and bundled ones, which form one quorum"
    traces = ""
    bugs: Mapping[str, Bug] = {}
    parameters: Mapping[str, str | float] = {**KafkaBrokers.parameters, "bundled": 1.0}

    async def _controller(self, node: OwnNode, nodes: Sequence[OwnNode]) -> Command:
        if node.index >= len(nodes) - int(self._setting("bundled")):
            return await super()._controller(node, nodes)
        return await self._process(node, nodes, "controller").command(node)
