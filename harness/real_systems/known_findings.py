"""Findings in systems that others wrote: each is a run with which anyone can see it again.

A finding is found if its checker is invalid, with a witness of one of its kinds: another violation is another finding.
`words` tell a user of that system what happened, with the figures of the run.  `clean` is the counterpart: the same
faults on the configuration that keeps the promise.  There the harness must find nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checkers.base.results import Results
from checkers.base.verdict import Witness
from harness.spec import Spec
from harness.story.kinds import name_in_words

_TREE = Path(__file__).resolve().parents[2]
EXAMPLES = next(path for path in (_TREE / "examples", _TREE / "krucible" / "examples") if path.exists())
"""In the tree they stand at its top; a wheel carries them inside the package `krucible`."""


@dataclass(frozen=True, slots=True)
class Clean:
    """The counterpart of a finding.  words: what is different.  The rest: what takes the place of the finding's own.

    schedule: it holds the cards of the finding's own schedule, and more.  A system that survives what the finding
    shows must still be seen to work under a fault, or the run was no real test of it.
    """

    words: str
    file: str = ""
    workload: str = ""
    schedule: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """file: of EXAMPLES, with a class behind a colon where the file holds several systems; "" for a bundled `subject`.
    workload: a name, or a file of EXAMPLES.  schedule: a file of EXAMPLES, "" to deal from the decks of `nemesis`.
    summary: the finding in a few words.  words: what happens to a user's data, with {names} of `looked_at`.
    published: where it is known from.  kinds: of witnesses; empty for any.
    missing: a figure of `looked_at` that must not be 0, where a kind of witness alone would not be this finding.
    says: a text that the summary of the witness must hold, for the same reason.
    complaint: a text in a server's own log that shows the finding too, before any client meets it, and what the server
        has noticed, in words.  ("", ""): there is none.
    """

    system: str
    configuration: str
    file: str
    workload: str
    nemesis: str
    checker: str
    summary: str
    words: str
    published: str
    kinds: tuple[str, ...] = ()
    missing: str = ""
    says: str = ""
    complaint: tuple[str, str] = ("", "")
    schedule: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    clean: Clean | None = None
    subject: str = ""

    def spec(self, name: str, seed: int, backend: str, clean: bool = False) -> Spec:
        """The run that shows the finding of this name, or that of its counterpart.  Raises ValueError where there is
        none."""
        other = Clean("") if not clean else self.clean
        if other is None:
            raise ValueError("this finding has no counterpart")
        workload, schedule = other.workload or self.workload, other.schedule or self.schedule
        return Spec(
            subject=self.subject or str(EXAMPLES / (other.file or self.file)),
            workload=str(EXAMPLES / workload) if workload.endswith(".py") else workload,
            nemesis=self.nemesis,
            schedule=str(EXAMPLES / schedule) if schedule else None,
            backend=backend,
            seed=seed,
            finding=name,
            clean=clean,
            **{**self.options, **other.options},
        )


_OFFSETS = {
    "time_limit_s": 41.0,
    "rate_hz": 7.0,
    "keys": 20,
    "concurrency": 16,
    "op_timeout_s": 12.0,
    "waive": "share-in-faults,writes-in-faults,elections",
}
_PENDING = (
    "flush=never,properties=offsets.commit.timeout.ms:20000 broker.session.timeout.ms:2000 replica.fetch.wait.max.ms:10"
)
"""Commits still wait when their coordinator hears that it was deposed, so it has something to lose."""
_KILLED = {"time_limit_s": 46.0, "rate_hz": 8.0, "keys": 3}
_ELIGIBLE = "controllers=apart,features=eligible.leader.replicas.version:1"
"""Options of the findings in Kafka."""

FINDINGS: Mapping[str, KnownFinding] = {
    "redis": KnownFinding(
        system="Redis 7.0 with Sentinel",
        configuration="three nodes, down-after-milliseconds 2000, no min-replicas-to-write",
        file="redis_sentinel.py",
        workload="workloads/set_read_at_end.py",
        nemesis="partition",
        checker="set",
        kinds=("acknowledged element lost",),
        summary="acknowledged elements are lost after a failover",
        words="Redis acknowledged {acknowledged} elements, and {missing_from_last_read} of them are missing from the "
        "last read: a primary that was cut off took writes, and gave them up when it became a replica again",
        published="Jepsen 2013: Redis; the documentation of Redis Sentinel",
        options={"nodes": 3, "time_limit_s": 40.0, "rate_hz": 200.0, "keys": 2},
    ),
    "etcd-lock": KnownFinding(
        system="etcd 3.4",
        configuration="three nodes, locks with a lease of 2 s that the holder keeps alive, no fencing",
        file="etcd_lock.py",
        workload="lock",
        nemesis="partition",
        checker="mutex",
        kinds=("held twice",),
        summary="two clients hold one lock",
        words="two clients held one lock at once: the first was cut off for longer than its lease, etcd gave the "
        "lock to the second, and the first still believed that it held it",
        published="Jepsen 2020: etcd 3.4.3; Kleppmann 2016, How to do distributed locking",
        options={"nodes": 3, "time_limit_s": 40.0, "rate_hz": 200.0, "keys": 16, "concurrency": 24},
        clean=Clean("a fencing token goes with every write", workload="fenced-lock"),
    ),
    "postgres-fork": KnownFinding(
        system="PostgreSQL 15",
        configuration="a primary and two synchronous hot standbys, one with recovery_min_apply_delay = 200ms; "
        "REPEATABLE READ, reads on all; half of the clients commit with synchronous_commit = local, half with "
        "remote_apply",
        file="postgresql.py",
        workload="workloads/fork_lists.py",
        nemesis="none",
        checker="list-append-snapshot",
        kinds=("G-nonadjacent",),
        summary="long fork between primary and standbys",
        words="long fork: a reader of the standby and a reader of the primary saw two writes in opposite orders, which "
        "no snapshots can explain.  A standby shows commits in the order of the log.  The primary shows each once "
        "its own wait for the standbys is over, which is another order",
        published="Jepsen 2025: Amazon RDS for PostgreSQL 17.4; discussed by PostgreSQL's developers since 2013",
        options={"nodes": 3, "time_limit_s": 20.0, "rate_hz": 0.0, "keys": 1, "concurrency": 24},
        clean=Clean("one node, all transactions SERIALIZABLE", options={"nodes": 1}),
    ),
    "mariadb": KnownFinding(
        system="MariaDB 10.11",
        configuration="one server, REPEATABLE READ, innodb_snapshot_isolation=OFF (the default of 10.11)",
        file="mariadb.py",
        workload="list-append",
        nemesis="none",
        checker="list-append-snapshot",
        kinds=("G-single", "lost-update"),
        summary="lost update, read skew",
        words="REPEATABLE READ lost the snapshot of a transaction: it read a row, overwrote a newer version of it that "
        "another transaction had committed since, and went on as if it had seen that version all the time",
        published="Jepsen 2023: MySQL 8.0.34, whose InnoDB does the same",
        options={"nodes": 1, "time_limit_s": 15.0, "rate_hz": 0.0, "keys": 8},
        clean=Clean("innodb_snapshot_isolation=ON", file="mariadb.py:SnapshotIsolation"),
    ),
    "duckdb": KnownFinding(
        system="DuckDB 2.0.1",
        configuration="one server embeds it, one connection a client, a table with a PRIMARY KEY, UPDATE ... RETURNING",
        file="duckdb_server.py",
        workload="bank",
        nemesis="none",
        checker="bank",
        kinds=("wrong total",),
        summary="committed updates are lost",
        words="DuckDB committed two transactions that changed one row at the same time, and one of the two changes "
        "is lost: an UPDATE with RETURNING deletes the row and inserts it anew if the table has an index, and DuckDB "
        "does not notice a delete and an update of one row as a conflict",
        published="duckdb issue 17223 (2025, closed as stale), for DELETE and UPDATE; not known to be published for "
        "two updates",
        options={"nodes": 1, "time_limit_s": 15.0, "rate_hz": 0.0, "keys": 1},
        clean=Clean("a table without an index", file="duckdb_server.py:NoIndex"),
    ),
    "galera": KnownFinding(
        system="MariaDB 10.11 with Galera 26.4",
        configuration="three servers, innodb_flush_log_at_trx_commit=0",
        file="galera.py",
        workload="workloads/set_read_at_end.py",
        nemesis="kill",
        schedule="schedules/kill_one_then_all.json",
        checker="set",
        kinds=("acknowledged element lost",),
        summary="acknowledged rows are lost when all servers are killed",
        words="Galera acknowledged {acknowledged} inserts, and {missing_from_last_read} of these rows are missing from "
        "the last read: a commit waits until the other servers have received it, and not until one of them has it on "
        "disk.  All three were killed, and the one that came back with the newest commits lacked these",
        published="Jepsen 2026: MariaDB Galera Cluster 12.1; MariaDB's documentation of innodb_flush_log_at_trx_commit",
        options={"nodes": 3, "time_limit_s": 39.0, "rate_hz": 200.0, "keys": 2, "recovery_limit_s": 120.0},
        clean=Clean(
            "innodb_flush_log_at_trx_commit=1 (the default)", file="galera.py:Flushed", options={"rate_hz": 0.0}
        ),
    ),
    "galera-stale": KnownFinding(
        system="MariaDB 10.11 with Galera 26.4",
        configuration="three servers, wsrep_sync_wait=0 (the default)",
        file="galera.py:Unwaited",
        workload="register",
        nemesis="none",
        checker="linearizability",
        kinds=("stale read",),
        summary="reads are older than answers before them",
        words="a client read a value that was already overwritten: an earlier answer had acknowledged or shown a newer "
        "one.  A server of Galera answers reads before it has applied all that the others have committed",
        published="the documentation of wsrep_sync_wait; Jepsen 2015: Percona XtraDB Cluster",
        options={"nodes": 3, "time_limit_s": 15.0, "rate_hz": 0.0, "keys": 8, "concurrency": 24},
        clean=Clean("wsrep_sync_wait=1", file="galera.py:Flushed"),
    ),
    "tarantool": KnownFinding(
        system="Tarantool 2.6.0",
        configuration="a primary and two replicas, a synchronous space, replication_synchro_quorum=2, "
        "replication_synchro_timeout=1 (default 5), reads at the primary",
        file="tarantool.py",
        workload="register",
        nemesis="partition",
        checker="linearizability",
        kinds=("order cycle", "stale read"),
        summary="reads show synchronous writes that are rolled back",
        words="a client read a value, and later reads showed an older one: the primary shows a synchronous write to "
        "every reader before a replica has it, and takes it back if none confirms it in time",
        published="tarantool issue 5229 (2020)",
        options={"nodes": 3, "time_limit_s": 40.0, "rate_hz": 60.0, "keys": 4},
    ),
    "sqlite": KnownFinding(
        system="SQLite 3",
        configuration="one file behind a small server, journal_mode=DELETE, synchronous=FULL (both the defaults)",
        file="sqlite.py",
        workload="counter",
        nemesis="power",
        checker="counter",
        kinds=("impossible sum",),
        summary="acknowledged commits are lost at a power loss",
        words="a counter held less than what was acknowledged: the removal of the journal, which is the commit, was "
        "not on the disk, so SQLite found the journal again after a power loss and rolled the commit back",
        published="the documentation of SQLite: PRAGMA synchronous, EXTRA",
        options={"nodes": 1, "time_limit_s": 45.0, "rate_hz": 60.0, "keys": 3},
        clean=Clean("synchronous=EXTRA", file="sqlite.py:Extra"),
    ),
    "rabbitmq": KnownFinding(
        system="RabbitMQ 3.10",
        configuration="three nodes, classic queues mirrored to all (ha-mode all), autoheal, net_ticktime 5",
        file="rabbitmq.py",
        workload="workloads/queue_drained_at_end.py",
        nemesis="partition",
        schedule="schedules/one_node_cut_long.json",
        checker="queue",
        kinds=("acknowledged element lost",),
        summary="confirmed messages are lost after a partition",
        words="RabbitMQ confirmed {acknowledged} messages, and {never_taken} of them never came out of their queues, "
        "which were drained at the end: both sides of a partition confirmed messages, and autoheal restarted the "
        "smaller side and dropped what it had confirmed",
        published="Jepsen 2014: RabbitMQ; the documentation of RabbitMQ on partitions",
        # Autoheal lets the side with more connections win, and each refused publish costs one: few publishes keep them.
        options={"nodes": 3, "time_limit_s": 40.0, "rate_hz": 20.0, "keys": 2, "op_timeout_s": 20.0},
        clean=Clean("quorum queues", file="rabbitmq.py:QuorumQueue"),
    ),
    "pysyncobj": KnownFinding(
        system="PySyncObj 0.3.17",
        configuration="three nodes, journal and dump files, a log that is compacted every 100 entries (default 5000)",
        file="pysyncobj.py",
        workload="workloads/set_read_at_end.py",
        nemesis="partition",
        schedule="schedules/leader_cut_long.json",
        checker="set",
        summary="writes answered SUCCESS that no node holds",
        words="PySyncObj answered SUCCESS to {acknowledged} writes, and {missing_from_last_read} of them are missing "
        "from the last read: a leader that was cut off got a snapshot after the heal, took its own uncommitted entries "
        "for committed ones, and answered the clients that still waited for them",
        published="not known to be published; the cause is in the handling of append_entries: a part of a snapshot "
        "goes on to the code that raises the commit index, over the deposed leader's own tail",
        options={
            "nodes": 3,
            "time_limit_s": 30.0,
            "rate_hz": 30.0,
            "keys": 1,
            "concurrency": 160,
            "op_timeout_s": 30.0,
        },
    ),
    "nats": KnownFinding(
        system="NATS 2.14 JetStream",
        configuration="three servers, a stream with three replicas, default sync_interval (2 minutes)",
        file="nats.py",
        workload="workloads/set_read_at_end.py",
        nemesis="partition,power",
        schedule="schedules/power_loss_of_one.json",
        checker="set",
        kinds=("acknowledged element lost", "stale read", "order cycle"),
        missing="missing_from_last_read",
        summary="acknowledged messages are lost when one server loses its power",
        words="NATS acknowledged {acknowledged} messages, and {missing_from_last_read} of them are missing from the "
        "last read: one server lost its power and with it what it had acknowledged but not fsynced, and formed a "
        "majority with a server that had never had it.  All copies of the stream may lack them, or the copies differ",
        published="Jepsen 2025: NATS 2.12.1; nats-server issues 7564 and 7567",
        options={"nodes": 3, "time_limit_s": 48.0, "rate_hz": 50.0, "keys": 1, "op_timeout_s": 2.0},
        clean=Clean(
            "sync_interval: always",
            file="nats.py:SyncAlways",
            options={"time_limit_s": 60.0, "rate_hz": 15.0, "op_timeout_s": 5.0},
        ),
    ),
    "zookeeper-boot": KnownFinding(
        system="ZooKeeper 3.8.0",
        configuration="a new ensemble of three",
        file="zookeeper.py",
        workload="register",
        nemesis="power",
        schedule="schedules/power_loss_of_all.json",
        checker="recovery",
        kinds=("not recovered",),
        summary="a new ensemble does not survive a power loss",
        words="the ensemble never came back: all servers lost their power soon after their first start.  ZooKeeper "
        "does not fsync its first snapshot, and a server that finds log entries without a snapshot refuses to start",
        published="not known to be published in this form; related: ZOOKEEPER-2310, ZOOKEEPER-2325, ZOOKEEPER-2872",
        options={"nodes": 3, "time_limit_s": 10.0, "rate_hz": 100.0, "recovery_limit_s": 30.0},
        clean=Clean(
            "zookeeper.snapshot.trust.empty=true",
            file="zookeeper.py:TrustEmpty",
            schedule="schedules/power_loss_of_all_then_leader.json",
            options={"time_limit_s": 80.0, "rate_hz": 100.0, "recovery_limit_s": 60.0},
        ),
    ),
    "etcd-351": KnownFinding(
        system="etcd 3.5.1",
        configuration="a cluster of one node, default options",
        file="etcd_351.py",
        workload="workloads/set_read_at_end.py",
        nemesis="partition,power",
        schedule="schedules/power_loss_at_fsync.json",
        checker="set",
        kinds=("acknowledged element lost",),
        summary="the newest acknowledged write is lost",
        words="etcd acknowledged {acknowledged} writes, and {missing_from_last_read} of them are missing from the last "
        "read: a cluster of one node answers before its log is fsynced, and lost its power in between",
        published="etcd issue 14370 (2022), mended in 3.4.21 and 3.5.5",
        options={"nodes": 1, "time_limit_s": 40.0, "rate_hz": 100.0, "keys": 1},
        clean=Clean("etcd 3.4.23", file="etcd_351.py:Etcd34", options={"time_limit_s": 50.0, "rate_hz": 0.0}),
    ),
    "etcd-20418": KnownFinding(
        system="etcd 3.4.23",
        configuration="three nodes, default options, linearizable reads through every member",
        file="",
        subject="etcd",
        workload="register",
        nemesis="packets,pause",
        schedule="schedules/leader_hears_the_past.json",
        checker="linearizability",
        kinds=("stale read", "order cycle"),
        summary="linearizable reads of a leader that was paused are stale",
        words="a linearizable read returned a value that was already overwritten: the leader was paused and replaced, "
        "went on, and took an old response to a repeated request of a follower for proof that it still led",
        published="etcd issue 20418 (2025), found by Antithesis; mended in 3.4.42, 3.5.28 and 3.6.9",
        options={
            "nodes": 3,
            "time_limit_s": 120.0,
            "stop_on_violation": True,
            "rate_hz": 0.0,
            "keys": 5,
            "concurrency": 20,
            "op_timeout_s": 1.5,
            "set": "version=3.4.23",
        },
        clean=Clean("etcd 3.7.3", options={"set": "version=3.7.3"}),
    ),
    "patroni": KnownFinding(
        system="Patroni 3.0.2 with PostgreSQL 15 and etcd 3.4",
        configuration="three nodes, etcd3, synchronous_mode and synchronous_mode_strict, ttl 10",
        file="patroni.py",
        workload="set",
        nemesis="pause",
        schedule="schedules/leader_paused_thrice.json",
        checker="leadership",
        kinds=("two leaders of one epoch",),
        summary="a returning leader takes the place of its successor",
        words="two nodes led under one leader key: a leader that had been paused overwrote the key of its successor, "
        "which then gave way; what the successor had acknowledged can be lost",
        published="Patroni's pull request 2689 (2023), mended in 3.0.3; Debian 12 packages 3.0.2",
        options={"nodes": 3, "time_limit_s": 104.0, "rate_hz": 20.0, "keys": 1},
        clean=Clean("the leader key is written with a compare (a mend)", file="patroni.py:Mended"),
    ),
    "hiqlite": KnownFinding(
        system="hiqlite 0.15.3",
        configuration="three nodes, default options, query_consistent; a program embeds it",
        file="hiqlite.py",
        workload="register",
        nemesis="kill",
        schedule="schedules/leader_restarted.json",
        checker="linearizability",
        kinds=("stale read", "order cycle"),
        summary="consistent reads are older than answers before them",
        words="query_consistent returned a value that was already overwritten: the leader was killed and started "
        "again, led on in its old term, and answered before it had applied the end of its own log",
        published="openraft issue 1511 (2025), in general: openraft 0.9.25, which hiqlite embeds, still does it",
        options={"nodes": 3, "time_limit_s": 44.0, "rate_hz": 0.0, "keys": 4, "concurrency": 12},
        clean=Clean(
            "with the last entry of the term in place of the first in one line of openraft",
            file="hiqlite.py:ReadsMended",
        ),
    ),
    "hiqlite-power": KnownFinding(
        system="hiqlite 0.15.3",
        configuration="three nodes, LogSync::Immediate, feature auto-heal; a program embeds it",
        file="hiqlite.py",
        workload="register",
        nemesis="power",
        schedule="schedules/power_loss_reordered.json",
        checker="nodes-stay-up",
        kinds=("node died",),
        says="Attempt to read non-existent data of length 0",
        summary="a node never starts again after a power loss",
        words="a node never started again after a power loss: the header of its write-ahead log was on the disk, and "
        "the record that it names was not, because one msync covers both",
        published="not known to be published; the cause is in hiqlite-wal's check_repair_data_integrity",
        options={"nodes": 3, "time_limit_s": 79.0, "rate_hz": 100.0, "keys": 4, "concurrency": 12},
        clean=Clean(
            "a record that was not written is rolled back, and no read is stale (two mends)",
            file="hiqlite.py:LogMended",
            schedule="schedules/power_loss_reordered_then_more.json",
            options={"time_limit_s": 110.0},
        ),
    ),
    "hiqlite-lock": KnownFinding(
        system="hiqlite 0.15.3",
        configuration="three nodes, default options, locks with a lease of 10 s that the holder renews; a program "
        "embeds it",
        file="hiqlite.py:Locks",
        workload="lock",
        nemesis="partition",
        schedule="schedules/one_node_cut_long.json",
        checker="mutex",
        kinds=("held twice",),
        summary="two clients hold one lock",
        words="two clients held one lock: a node that was cut off granted it to a client that waited there, by its own "
        "clock and without the other nodes, while the lock was in use on the other side",
        published="not known to be published; the cause is in hiqlite's client/dlock.rs",
        options={
            "nodes": 3,
            "time_limit_s": 60.0,
            "rate_hz": 20.0,
            "keys": 10,
            "concurrency": 30,
            "op_timeout_s": 40.0,
            "set": "held_s=3,held_long_s=3",
        },
        clean=Clean("a waiting client claims the lock through the Raft (a mend)", file="hiqlite.py:LocksMended"),
    ),
    "d-engine": KnownFinding(
        system="d-engine 0.2.4",
        configuration="five nodes, LinearizableRead, lease 500 ms, election time-out 1 to 2 s; a program embeds it",
        file="d_engine.py",
        workload="register",
        nemesis="partition",
        schedule="schedules/leader_in_minority.json",
        checker="linearizability",
        kinds=("stale read", "order cycle"),
        summary="linearizable reads of a deposed leader are stale",
        words="a linearizable read returned a value that was already overwritten: the leader was in the minority "
        "with one follower, whose answers alone renewed its lease",
        published="not known to be published in this form; related: d-engine issue 381, pull requests 383 and 391",
        options={"nodes": 5, "time_limit_s": 34.0, "rate_hz": 100.0, "keys": 4, "concurrency": 16},
        clean=Clean("a lease begins when a majority has answered since (a mend)", file="d_engine.py:ReadsMended"),
    ),
    "d-engine-full": KnownFinding(
        system="d-engine 0.2.4",
        configuration="three nodes, file storage; a program embeds it",
        file="d_engine.py",
        workload="register",
        nemesis="disk",
        schedule="schedules/leader_disk_full.json",
        checker="recovery",
        summary="a leader whose disk was full leads on and answers nothing",
        words="the leader's disk was full for 5 s; from then on nothing could be read or written: its state machine "
        "had ended, and the node led on",
        published="not known to be published; d-engine-core's raft.rs logs a fatal error and goes on",
        options={"nodes": 3, "time_limit_s": 30.0, "rate_hz": 60.0, "keys": 4},
        clean=Clean(
            "the node ends at a fatal error (a mend)",
            file="d_engine.py:FatalMended",
            schedule="schedules/leader_disk_full_then_pause.json",
        ),
    ),
    "d-engine-term": KnownFinding(
        system="d-engine 0.2.4",
        configuration="three nodes, file storage; a program embeds it",
        file="d_engine.py",
        workload="register",
        nemesis="kill",
        schedule="schedules/all_killed_four_times.json",
        checker="leadership",
        kinds=("two leaders of one epoch",),
        summary="two nodes lead one term",
        words="two nodes led one term: all nodes were killed, had saved neither term nor vote, and counted terms from "
        "1 again",
        published="not known to be published; save_hard_state is called in Drop for Raft alone, which no crash runs",
        options={"nodes": 3, "time_limit_s": 44.0, "rate_hz": 40.0, "keys": 4},
        clean=Clean("term and vote are saved before a vote (a mend)", file="d_engine.py:TermSaved"),
    ),
    "kafka-20634": KnownFinding(
        system="Apache Kafka 4.3.0",
        configuration="three nodes, each broker and controller, short time-outs; an exporter of consumer lag "
        "asks meanwhile",
        file="",
        subject="kafka",
        workload="kafka-offsets",
        nemesis="partition",
        schedule="schedules/coordinator_isolated_four_times.json",
        checker="linearizability",
        summary="acknowledged offset commits are lost",
        words="a consumer group committed an offset and Kafka acknowledged it, and later reads returned an older one: "
        "a coordinator that was cut off truncated its log before it unloaded what it had acknowledged",
        complaint=(
            "Execution of HighWatermarkUpdate failed",
            "a coordinator that was cut off truncated its log before it unloaded what it had acknowledged, and then "
            "met a high watermark that does not fit; no client has met a lost commit in this run",
        ),
        published="KAFKA-20634 (2026), mended in 4.3.1",
        options={"nodes": 3, **_OFFSETS, "set": f"version=4.3.0,{_PENDING}"},
        clean=Clean("4.3.1", options={"set": f"version=4.3.1,{_PENDING}"}),
    ),
    "kafka-19522": KnownFinding(
        system="Apache Kafka 4.0.0",
        configuration="three brokers beside three controllers, eligible leader replicas",
        file="",
        subject="kafka",
        workload="kafka-queue",
        nemesis="kill:broker",
        schedule="schedules/brokers_killed_in_turn.json",
        checker="partition-chain",
        summary="a broker that is fenced is elected leader",
        words="a controller made a broker the leader of a partition while that broker was fenced: it was the last "
        "known leader of a partition without replicas in sync",
        published="KAFKA-19522 (2025), mended in 4.1.0",
        options={"nodes": 3, **_KILLED, "set": f"version=4.0.0,{_ELIGIBLE}"},
        clean=Clean("4.1.1", options={"set": f"version=4.1.1,{_ELIGIBLE}"}),
    ),
}


def found(finding: KnownFinding, results: Results) -> bool:
    """Return whether the results of a run show this very finding."""
    checker = results.invalid.get(finding.checker)
    if witness_of(finding, results) is None:
        return False
    if checker is None:
        return _complaint_of(finding, results) is not None
    return not finding.missing or checker.figure(finding.missing) > 0


def witness_of(finding: KnownFinding, results: Results) -> Witness | None:
    """The first witness that shows the finding, else a complaint that does; None if there is neither."""
    judged = results.checkers.get(finding.checker)
    witnesses = judged.witness if judged is not None else ()
    return next(
        (w for w in witnesses if (not finding.kinds or w.kind in finding.kinds) and finding.says in w.summary),
        _complaint_of(finding, results),
    )


def _complaint_of(finding: KnownFinding, results: Results) -> Witness | None:
    text, _ = finding.complaint
    stayed_up = results.invalid.get("nodes-stay-up")
    witnesses = stayed_up.witness if stayed_up is not None and text else ()
    return next((w for w in witnesses if text in w.summary), None)


def in_words(finding: KnownFinding, results: Results) -> str:
    """The finding for a user of that system, with the figures of this run."""
    if finding.checker not in results.invalid and _complaint_of(finding, results) is not None:
        return finding.complaint[1]
    figures = results.checkers[finding.checker].looked_at
    looked_at = {name: f"{value:,}" if isinstance(value, int) else value for name, value in figures.items()}
    return finding.words.format_map(_Figures(looked_at))


class _Figures(dict[str, Any]):
    """A figure that the checker did not give is worded, too."""

    def __missing__(self, name: str) -> str:
        return "some"


def witness_in_words(finding: KnownFinding, results: Results) -> str:
    """The witness of a finding that was seen, led by the name that users of databases know: `lost update: T1 and T2
    both read …`."""
    witness = witness_of(finding, results)
    assert witness is not None
    return f"{name_in_words(witness.kind)}: {witness.summary.removeprefix(f'{witness.kind}: ')}"
