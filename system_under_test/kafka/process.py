"""One process of Apache Kafka on a node: a broker, a controller, or both."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from system_under_test.kafka.jars import ARCHIVE, JVM
from system_under_test.system import JARS, OwnNode

BROKER_PORT, CONTROLLER_PORT = 9092, 9093
CLUSTER_ID = "a3J1Y2libGUta2Fma2EtMQ"
FOR_TWO_CORES: Mapping[str, object] = {
    "num.network.threads": 1,
    "num.io.threads": 2,
    "background.threads": 2,
    "num.replica.fetchers": 1,
    "log.cleaner.dedupe.buffer.size": 2 << 20,  # 128 MiB by default
    "log.index.size.max.bytes": 1 << 16,  # an index is preallocated: 10 MiB by default
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
}
"""Small pools and files, so that several processes share a small machine."""
QUICK_TO_FAIL_OVER: Mapping[str, object] = {
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3000,
    "replica.lag.time.max.ms": 3000,
    "replica.socket.timeout.ms": 3000,
    "controller.socket.timeout.ms": 2000,  # for requests that brokers forward; longer than a client waits
    "controller.quorum.request.timeout.ms": 1000,  # so a broker asks several voters for a leader within its session
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 3000,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}
LOG4J = """Configuration:
  Appenders:
    Console:
      name: STDOUT
      target: SYSTEM_OUT
      PatternLayout: {pattern: "[%d] %p %m (%c)%n"}
  Loggers:
    Root: {level: INFO, AppenderRef: [{ref: STDOUT}]}
"""


@dataclass(frozen=True, slots=True)
class KafkaProcess:
    """A process with its roles, and the quorum it belongs to.

    node_id: unique in the cluster. roles: "broker", "controller", or both.
    controllers: node id -> host:port of every voter of the metadata quorum, possibly of another implementation.
    folder: of its logs, in the data directory of the node.
    replicas: replication factor of the internal topics.
    settings: properties that replace those here or are added.
    format_options: of Kafka's `StorageTool format`, such as "--release-version 4.0".
    version: of its archives, if there are several.
    """

    node_id: int
    roles: tuple[str, ...]
    controllers: Mapping[int, str]
    folder: str = "kafka"
    replicas: int = 3
    settings: Mapping[str, object] = field(default_factory=dict)
    format_options: Sequence[str] = ()
    version: str = ""

    async def command(self, node: OwnNode) -> str:
        """Write the configuration, and return the command that formats the folder once and runs the process.

        A restart after a power loss finds the folder formatted, because `sync` makes it durable before the first start.
        """
        file = f"{self.folder}.properties"
        await node.write(file, self.properties(node.address, node.data_dir))
        await node.write("log4j2.yaml", LOG4J)
        options = shlex.join(["--cluster-id", CLUSTER_ID, "--config", file, *self.format_options])
        form = java(f"kafka.tools.StorageTool format {options}", self.version)
        meta = f"{self.folder}/meta.properties"
        once = f"[ -s {meta} ] || {{ {form} && sync {self.folder}/* {self.folder} .; }}"
        return f"{{ {once}; }} && exec {java(f'kafka.Kafka {file}', self.version)}"

    def properties(self, address: str, data_dir: str) -> str:
        """Return the text of its configuration file."""
        listeners = {"broker": f"PLAINTEXT://{address}:{BROKER_PORT}"}
        listeners["controller"] = f"CONTROLLER://{address}:{CONTROLLER_PORT}"
        values: dict[str, object] = {
            "process.roles": ",".join(self.roles),
            "node.id": self.node_id,
            "listeners": ",".join(listeners[role] for role in self.roles),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": ",".join(f"{number}@{place}" for number, place in self.controllers.items()),
            "log.dirs": f"{data_dir}/{self.folder}",
            "auto.create.topics.enable": "false",
            "default.replication.factor": self.replicas,
            "offsets.topic.replication.factor": self.replicas,
            "transaction.state.log.replication.factor": self.replicas,
            "share.coordinator.state.topic.replication.factor": self.replicas,
            "min.insync.replicas": min(2, self.replicas),
            "transaction.state.log.min.isr": min(2, self.replicas),
        }
        if "broker" in self.roles:
            values["advertised.listeners"] = listeners["broker"]
        every = {**values, **FOR_TWO_CORES, **QUICK_TO_FAIL_OVER, **self.settings}
        return "".join(f"{name}={value}\n" for name, value in every.items())


def java(words: str, version: str = "") -> str:
    """Return a shell command that runs a class of Kafka.  It uses the class-data archive if that matches.

    version: of the archives, if there are several (`jars.jars_of_all`).
    """
    jars = f"{JARS}/{version}" if version else JARS
    archive = f'-XX:SharedArchiveFile="{jars}/{ARCHIVE}" -Xlog:disable -Xlog:all=error:stderr'
    return f'java {JVM} {archive} -Dlog4j2.configurationFile=log4j2.yaml -cp "{jars}/*" {words}'
