"""A cluster of Apache Kafka: each node is a broker and a controller, in one process or in two.

krucible run --subject kafka --set version=4.3.0                a release, from Maven Central
krucible run --subject kafka --set home=../kafka                your own build
krucible run --subject kafka --set controllers=apart,release=4.0,features=eligible.leader.replicas.version:1
krucible run --subject kafka --set 'properties=num.io.threads:4 unclean.leader.election.enable:true'
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from system_under_test.client import Client
from system_under_test.kafka.client import ANY, IN_TURN, OFFSETS, PAIRS, KafkaClient
from system_under_test.kafka.process import BROKER_PORT, CONTROLLER_PORT, KafkaProcess, jars_of, jars_of_all, java
from system_under_test.kafka.records import CLASSIC, KIP_848, LIMITS, MIXED, ONCE
from system_under_test.kafka.wire import BROKERS_APART, moves_on, node_of, partitions_on
from system_under_test.subject import Bug, Needs, NodeStatus, planted_bugs
from system_under_test.system import METADATA, METADATA_FOLDER, TOPICS, Command, OwnNode, System

TOGETHER, APART, EACH, NEVER, SELDOM, OFTEN = "together", "apart", "each", "never", "seldom", "often"
CHOICES: Mapping[str, Collection[str]] = {
    "controllers": (TOGETHER, APART),
    "flush": (EACH, NEVER),
    "group_protocol": (CLASSIC, KIP_848, MIXED),
    "moves": (ANY, IN_TURN, PAIRS),
    "snapshots": (SELDOM, OFTEN),
    "transactions": LIMITS,
}
CANNOT_REPLAY = (
    r"Encountered [a-z ]+ fault: (?:Error loading metadata|Error generating new metadata|Unable to apply).*"
    r"|Replaying record CoordinatorRecord\(key=\w+"
)
"""Pattern of lines with which Kafka reports records of metadata or of a coordinator that it cannot replay."""
BUGS = planted_bugs(Path(__file__).with_name("bugs.toml"))
UPGRADE_S = 30.0
"""Maximum seconds of Kafka's tool that raises feature levels."""
_ALWAYS = 1
_NEVER = (1 << 63) - 1


class Kafka(System):
    """Settings (`--set`):
        version: release on Maven Central
        home: folder of your own Kafka (`process.jars_of`)
        versions: releases separated by spaces, oldest first; faults upgrade one node after another through them
    controllers: "together" with the broker in one process, or "apart" in a separate process
    release, features: options of formatting: `--release-version`, and NAME:LEVEL separated by spaces
    properties: properties of all processes, as NAME:VALUE separated by spaces
    flush: "each" record is fsynced before it is acknowledged, or "never", as Kafka does by default.  Then a power loss
        of all replicas loses acknowledged records, as Kafka documents.
    group_protocol: protocol of consumers that subscribe: "classic", "consumer" (KIP-848), or "mixed" (`records.MIXED`)
    moves: partitions that are moved: "any", "in-turn" for only those without a reassignment in progress, or "pairs" for
        these to two brokers each
    transactions: attempts of transactional producers: "once" or "repeated" (`records.LIMITS`)
    """

    name = "kafka"
    summary = "Apache Kafka from its own jars, asked by librdkafka"
    port = BROKER_PORT
    client: ClassVar[type[Client] | None] = KafkaClient
    failover_s = 6.0
    registers_brokers = True
    complaints = rf"Execution of HighWatermarkUpdate.* failed.*|{CANNOT_REPLAY}"
    usual: Mapping[str, float] = {"nodes": 3, "rate_hz": 40.0, "keys": 4}
    bugs: Mapping[str, Bug] = BUGS["kafka"]
    parameters: Mapping[str, str | float] = {
        "version": "",
        "home": "",
        "versions": "",
        "controllers": TOGETHER,
        "release": "",
        "features": "",
        "properties": "",
        "flush": EACH,
        "group_protocol": CLASSIC,
        "moves": ANY,
        "transactions": ONCE,
    }

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        one = str(self._setting("version")), str(self._setting("home"))
        jars = jars_of_all(self.versions) if self.versions else jars_of(*one)
        return Needs(debian=("openjdk-17-jre-headless",), wheels=("confluent-kafka==2.16.1",), jars=jars)

    @property
    def versions(self) -> Sequence[str]:  # type: ignore[override]
        return str(self._setting("versions")).split()

    @property
    def processes(self) -> Sequence[str]:  # type: ignore[override]
        return ("controller", "broker") if self._apart else ()

    @property
    def logs(self) -> Mapping[str, str]:  # type: ignore[override]
        folder = "controller" if self._apart else "kafka"
        return {METADATA: f"{folder}/{METADATA_FOLDER}", TOPICS: "kafka/*-*"}

    def check_settings(self) -> None:
        for name, words in CHOICES.items():
            if name in self.parameters and (word := self._setting(name)) not in words:
                raise ValueError(f"--set {name} of {self.name} takes {' or '.join(words)}, not {word!r:.60}")
        if self.versions and (self._setting("version") or self._setting("home")):
            raise ValueError(
                f"--set versions of {self.name} already names every release: set neither version nor home with it"
            )
        if wrong := [name for name in self.versions if not re.fullmatch(r"\d+\.\d+\.\d+", name)]:
            raise ValueError(
                f"--set versions of {self.name} takes releases such as '4.3.1 4.4.0', not {wrong[0]!r:.60}"
            )
        for name in {"features", "properties"} & self.parameters.keys():
            pairs(name, str(self._setting(name)))

    def _setting(self, name: str) -> str | float:
        return {**self.parameters, **self.settings}[name]

    @property
    def _apart(self) -> bool:
        return self._setting("controllers") == APART

    async def start(self, node: OwnNode, nodes: Sequence[OwnNode]) -> Command | Mapping[str, Command]:
        if not self._apart:
            return await self._process(node, nodes, "broker", "controller").command(node)
        return {role: await self._process(node, nodes, role).command(node) for role in ("controller", "broker")}

    def _broker_id(self, node: OwnNode) -> int:
        return node.index + 1 + (BROKERS_APART if self._apart else 0)

    def _process(self, node: OwnNode, nodes: Sequence[OwnNode], *roles: str) -> KafkaProcess:
        flushes = self._setting("flush") == EACH and self.bug != "no-flush"
        return KafkaProcess(
            node_id=node.index + 1 if "controller" in roles else self._broker_id(node),
            roles=roles,
            controllers={each.index + 1: f"{each.address}:{CONTROLLER_PORT}" for each in nodes},
            folder="controller" if roles == ("controller",) else "kafka",
            replicas=min(3, len(nodes)),
            settings={
                "log.flush.interval.messages": _ALWAYS if flushes else _NEVER,
                **pairs("properties", str(self._setting("properties"))),
            },
            format_options=self._format_options(),
            version=node.version,
        )

    def _format_options(self) -> Sequence[str]:
        levels = pairs("features", self._features).items()
        release = ["--release-version", self._release] if self._release else []
        return [*release, *(word for name, level in levels for word in ("--feature", f"{name}={level}"))]

    @property
    def _release(self) -> str:
        return str(self._setting("release"))

    @property
    def _features(self) -> str:
        return str(self._setting("features"))

    async def status(self, node: OwnNode) -> NodeStatus | None:
        """Return the durable state of the metadata quorum on this node's controller."""
        state = await node.output(f"cat {self.logs[METADATA]}/quorum-state")
        if not state:
            return None
        try:
            noted = json.loads(state)
        except ValueError:  # the file is being replaced
            return None
        leader = noted["leaderId"]
        return node.reports(noted["leaderEpoch"], f"n{leader}" if leader >= 0 else None)

    async def leader_of(self, key: str) -> str | None:
        """Return the leader of the topic's only partition, according to the broker with the newest epoch.

        A key that is no topic is a consumer group: its coordinator leads the only partition of offsets.
        """
        known = []
        for node in self.nodes:
            if await node.state() == "running" and (topics := await partitions_on(node, BROKER_PORT, key, OFFSETS)):
                partitions = topics.get(key) or topics.get(OFFSETS) or {}
                known += [(each.leader_epoch, each.leader_id) for each in partitions.values()]
        _, leader = max(known, default=(0, -1))
        return node_of(leader) if leader > 0 else None

    async def ready(self, nodes: Sequence[OwnNode]) -> str | None:
        return await self._out_of_sync(nodes)

    async def caught_up(self, nodes: Sequence[OwnNode]) -> str | None:
        return await self._out_of_sync(nodes)

    async def upgraded(self, nodes: Sequence[OwnNode]) -> None:
        """Raise the feature levels with Kafka's own tool."""
        version = self.versions[-1]
        release = version.rpartition(".")[0]
        tool = f"org.apache.kafka.tools.FeatureCommand --bootstrap-server {nodes[0].address}:{BROKER_PORT}"
        done = await nodes[0].run(java(f"{tool} upgrade --release-version {release}", version), timeout_s=UPGRADE_S)
        if done.status != 0:
            words = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
            raise OSError(f"{nodes[0].name}: the levels of {release} were refused: {' | '.join(words)[-300:]}")

    async def _out_of_sync(self, nodes: Sequence[OwnNode]) -> str | None:
        """Return None once the broker of each of these nodes is an in-sync replica wherever it is a replica."""
        for node in nodes:
            if (topics := await partitions_on(node, BROKER_PORT)) is None:
                return f"the broker of {node.name} does not answer"
            live = {self._broker_id(each) for each in nodes}
            for name, partition in ((n, each) for n, numbers in topics.items() for each in numbers.values()):
                which = f"partition {name}-{partition.partition_index}"
                if behind := live & set(partition.replica_nodes) - set(partition.isr_nodes):
                    return f"{node.name}: {node_of(min(behind))} is not in sync with {which}"
                if partition.leader_id not in live:
                    return f"{node.name}: {which} has no live leader"
            if (moving := await moves_on(node, BROKER_PORT)) is None:
                return f"{node.name} does not answer which partitions are being moved"
            if moving:
                return f"{node.name}: {moving[0]} is still being moved"
        return None


def pairs(setting: str, text: str) -> dict[str, str]:
    """Return name -> value of a setting "name:value name:value".  Raises ValueError."""
    found = {}
    for each in text.split():
        name, _, value = each.partition(":")
        if not value:
            words = "takes NAME:VALUE, with spaces between several"
            raise ValueError(f"--set {setting} of kafka {words}, not {each!r:.60}")
        found[name] = value
    return found
