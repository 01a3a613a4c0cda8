"""Apache Kafka's archives, and one process that runs them on a node: a broker, a controller, or both.

The archives are releases from Maven Central, or a user's build.  The archives of several releases are in separate
folders, each named after its release.

A Java class-data archive of the classes loaded at start is created once for each set of archives.  With the class-data
archive a process needs 40 % less CPU time to start, which matters when several processes start at once.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from system_under_test.subject import Artefact, Jars
from system_under_test.system import JARS, OwnNode

VERSION = "4.4.0"
LOG4J_VERSION = "2.24.3"
JVM = "-Xms96m -Xmx384m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k -XX:-UsePerfData -XX:ActiveProcessorCount=1"
ARCHIVE = "classes.jsa"
HOME = "KAFKA_HOME"
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>krucible</groupId><artifactId>jars</artifactId><version>1</version>
<dependencies>{}</dependencies></project>
"""
_COPY = ("mvn", "--batch-mode", "dependency:copy-dependencies", "-DincludeScope=runtime")
_PREPARE = f"""
home=$(mktemp -d) && cd "$home" && port=$((20000 + RANDOM % 10000)) && trap 'rm -rf "$home"' EXIT || exit 1
cat > server.properties <<END
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
advertised.listeners=PLAINTEXT://127.0.0.1:$port
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.quorum.voters=1@127.0.0.1:$((port + 1))
log.dirs=$home/kafka
log.cleaner.dedupe.buffer.size=2097152
END
java {JVM} -cp "{JARS}/*" kafka.tools.StorageTool format --cluster-id a3J1Y2libGUta2Fma2EtMQ -c server.properties
cat > log4j2.yaml <<END
Configuration:
  Appenders: {{Console: {{name: STDOUT}}}}
  Loggers: {{Root: {{level: INFO, AppenderRef: [{{ref: STDOUT}}]}}}}
END
java {JVM} -XX:ArchiveClassesAtExit="{JARS}/{ARCHIVE}" -Dlog4j2.configurationFile=log4j2.yaml -cp "{JARS}/*" \\
    kafka.Kafka server.properties > log 2>&1 &
for _ in $(seq 300); do grep -q "Kafka Server started" log && break; sleep 0.2; done
kill $!; wait $!
"""
_PREPARE_EACH = f'for KRUCIBLE_JARS in "{JARS}"/*/; do ({_PREPARE}); done'
_BUILT = ("*/build/dependant-libs-*", "*/build/libs", "*/*/build/libs")


def jars_of(version: str, home: str) -> Jars:
    """Return the archives of a release, or, if `home` is given, of an installed or built Kafka.

    home: a folder of archives, an unpacked release (its `libs`), or a source tree in which `./gradlew jar` has run. ""
        means $KAFKA_HOME, if that is set and no version is named.
    Raises ValueError if a named folder contains no archive of Kafka.
    """
    home = home or ("" if version else os.environ.get(HOME, ""))
    if home:
        return Jars(folders=_folders(Path(home).expanduser()), prepare=_PREPARE)
    return Jars(_made(version or VERSION), prepare=_PREPARE)


def jars_of_all(versions: Sequence[str]) -> Jars:
    """Return the archives of several releases, each in a folder with the name of the release."""
    each = [_made(version, f"/{version}") for version in versions]
    commands = tuple(command for one in each for command in one.commands)
    files = {path: text for one in each for path, text in one.files.items()}
    return Jars(Artefact(f"Kafka {', '.join(versions)}", commands, "jars", files), prepare=_PREPARE_EACH)


def _made(version: str, folder: str = "") -> Artefact:
    """Return the Maven command that fetches a release.

    folder: subfolder for the archives of this release, if there are several
    """
    wanted = [f"org.apache.kafka:{name}:{version}" for name in ("kafka_2.13", "kafka-tools")]
    wanted += [f"org.apache.logging.log4j:{name}:{LOG4J_VERSION}" for name in ("log4j-core", "log4j-slf4j-impl")]
    text = _POM.format("".join(_DEPENDENCY.format(*each.split(":")) for each in wanted))
    pom = f"{version}.xml" if folder else "pom.xml"
    command = (*_COPY, f"--file={pom}", f"-DoutputDirectory=jars{folder}")
    return Artefact(f"Kafka {version}", (command,), "jars", {pom: text})


def _folders(home: Path) -> tuple[str, ...]:
    """Return the folders from which `bin/kafka-run-class.sh` takes archives."""
    built = [path for pattern in _BUILT for path in sorted(home.glob(pattern))]
    found = [home, home / "libs", *built]
    holding = tuple(str(folder.resolve()) for folder in found if any(folder.glob("*.jar")))
    if not any(path for folder in holding for path in Path(folder).glob("kafka_*.jar")):
        raise ValueError(
            f"there is no kafka_*.jar in {home}, nor in its libs: name an unpacked release, a folder of archives, or a "
            "source tree in which ./gradlew jar has run"
        )
    return holding


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
"""Settings for small pools and files, so that several processes can share a small machine."""
QUICK_TO_FAIL_OVER: Mapping[str, object] = {
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3000,
    "replica.lag.time.max.ms": 3000,
    "replica.socket.timeout.ms": 3000,
    "controller.socket.timeout.ms": 2000,  # for requests that brokers forward; longer than a client waits
    "controller.quorum.request.timeout.ms": 1000,  # so that a broker can ask several voters within its session
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
    """A process with its roles, and the quorum to which it belongs.

    node_id: id that is unique in the cluster
    roles: "broker", "controller", or both
    controllers: node id -> host:port of every voter of the metadata quorum, possibly of another implementation
    folder: folder of its logs, in the data directory of the node
    replicas: replication factor of the internal topics
    settings: properties that are added to the default properties or replace them
    format_options: options of Kafka's `StorageTool format`, such as "--release-version 4.0"
    version: version of its archives, if there are several
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

        A restart after a power loss finds the folder formatted, because `sync` makes the format durable before the
        first start.
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
    """Return a shell command that runs a class of Kafka.  The command uses the class-data archive if the archive
    matches.

    version: version of the archives, if there are several (`jars_of_all`)
    """
    jars = f"{JARS}/{version}" if version else JARS
    archive = f'-XX:SharedArchiveFile="{jars}/{ARCHIVE}" -Xlog:disable -Xlog:all=error:stderr'
    return f'java {JVM} {archive} -Dlog4j2.configurationFile=log4j2.yaml -cp "{jars}/*" {words}'
