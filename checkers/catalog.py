"""Every checker by name, in the order in which reports show them."""

from __future__ import annotations

from checkers.checker import Checker
from checkers.committed import COMMITTED
from checkers.health import NODES_STAY_UP, RECOVERY
from checkers.history_log import HISTORY_LOG
from checkers.kafka_log.checker import KAFKA
from checkers.linearizability import LINEARIZABILITY
from checkers.raft_elections import ELECTION_SAFETY, VOTE_ONCE
from checkers.raft_leaders import LEADER_COMPLETENESS
from checkers.raft_logs import LOG_MATCHING
from checkers.raft_majority import HELD_BY_MAJORITY
from checkers.raft_progress import MONOTONICITY, STATE_MACHINE_SAFETY
from checkers.raft_snapshots import SNAPSHOT_PREFIX
from checkers.statistics import STATISTICS
from checkers.transactions.checker import LIST_APPEND, RW_REGISTER
from checkers.vacuity import VACUITY

_IN_ORDER = (
    LINEARIZABILITY,
    HISTORY_LOG,
    COMMITTED,
    HELD_BY_MAJORITY,
    LEADER_COMPLETENESS,
    LOG_MATCHING,
    ELECTION_SAFETY,
    VOTE_ONCE,
    MONOTONICITY,
    STATE_MACHINE_SAFETY,
    SNAPSHOT_PREFIX,
    NODES_STAY_UP,
    RECOVERY,
    STATISTICS,
    VACUITY,
)

CATALOG: dict[str, Checker] = {checker.name: checker for checker in _IN_ORDER}

BY_MODEL: dict[str, Checker] = {checker.name: checker for checker in (LIST_APPEND, RW_REGISTER, KAFKA)}
"""Checkers of one kind of history each, which judge a run only where its workload names them."""
