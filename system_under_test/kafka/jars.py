"""The Java archives of Kafka: releases from Maven Central, or a user's build.

The archives of several releases are in separate folders, named after the release.

A Java class-data archive of the classes loaded at start is created once for each set of archives.  With it a process
starts with 40 % less CPU time, which matters when several start at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from system_under_test.subject import Artefact, Jars
from system_under_test.system import JARS

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
    """Return the archives of several releases, each in a folder of its name."""
    each = [_made(version, f"/{version}") for version in versions]
    commands = tuple(command for one in each for command in one.commands)
    files = {path: text for one in each for path, text in one.files.items()}
    return Jars(Artefact(f"Kafka {', '.join(versions)}", commands, "jars", files), prepare=_PREPARE_EACH)


def _made(version: str, folder: str = "") -> Artefact:
    """Return the Maven command that fetches a release. folder: of its archives, below that of all."""
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
