"""Every checker by name, in the order in which reports show them."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from checkers.base.checker import Checker, Need
from checkers.cluster.replay import BROKER_INCARNATIONS, PARTITION_CHAIN
from checkers.cluster.sessions import BROKER_SESSIONS
from checkers.cluster.topics_against_log import TOPICS_AGAINST_LOG
from checkers.kafka_log.judge import KAFKA, KAFKA_READ_TO_END
from checkers.models.checker import CHECKERS as OF_MODELS
from checkers.models.checker import own_checkers
from checkers.raft.answered_from_commits import ANSWERED_AFTER_COMMIT, ANSWERED_FROM_COMMITS
from checkers.raft.committed import COMMITTED, LEADER_COMPLETENESS
from checkers.raft.history_against_log import HISTORY_LOG, SYSTEM_ENTRIES
from checkers.raft.log_matching import LOG_MATCHING
from checkers.raft.log_order import LOG_ORDER
from checkers.raft.replay_equals_live import REPLAY_EQUALS_LIVE
from checkers.raft.trace_validation import TRACE_VALIDATION
from checkers.raft.trace_verdicts import OF_TRACES
from checkers.registers.checker import LINEARIZABILITY
from checkers.replicas import CONVERGENCE, EQUAL_REPLICAS, SHOWN_ORDER, TWO_IMPLEMENTATIONS
from checkers.run_quality.availability import AVAILABILITY
from checkers.run_quality.evidence import EVIDENCE
from checkers.run_quality.health import NODES_STAY_UP, RECOVERY
from checkers.run_quality.history_figures import STATISTICS
from checkers.run_quality.leadership import LEADERSHIP
from checkers.run_quality.vacuity import VACUITY
from checkers.transactions.checker import OF_TRANSACTIONS

_IN_ORDER = (
    LINEARIZABILITY,
    HISTORY_LOG,
    SYSTEM_ENTRIES,
    LOG_ORDER,
    ANSWERED_AFTER_COMMIT,
    ANSWERED_FROM_COMMITS,
    COMMITTED,
    LEADER_COMPLETENESS,
    LOG_MATCHING,
    *OF_TRACES,
    REPLAY_EQUALS_LIVE,
    BROKER_INCARNATIONS,
    PARTITION_CHAIN,
    BROKER_SESSIONS,
    EQUAL_REPLICAS,
    TWO_IMPLEMENTATIONS,
    TRACE_VALIDATION,
    LEADERSHIP,
    NODES_STAY_UP,
    AVAILABILITY,
    RECOVERY,
    STATISTICS,
    VACUITY,
    EVIDENCE,
)

CATALOG: dict[str, Checker] = {checker.name: checker for checker in _IN_ORDER}

_OF_OTHERS = (KAFKA, KAFKA_READ_TO_END, CONVERGENCE, SHOWN_ORDER, TOPICS_AGAINST_LOG)
BY_MODEL: dict[str, Checker] = {checker.name: checker for checker in (*OF_TRANSACTIONS, *_OF_OTHERS, *OF_MODELS)}
"""Checkers for one kind of history each.  Such a checker judges a run only if the run's workload names it."""

OF_CLIENTS = frozenset({LINEARIZABILITY.name, *BY_MODEL})
"""Names of the checkers that judge the answers to clients; each workload must name one."""


def wrong_names(models: Collection[object]) -> str:
    """Return the reason why the checkers of a workload are wrong; "" if they are correct.

    models: names of checkers, and the user's own checkers (`checkers/models/checker.py`).  At least one of them must
    judge the answers to clients.
    """
    if isinstance(models, str):
        return f"its checkers are the text {models!r}: write a tuple, such as ({models!r},)"
    known = (*BY_MODEL, *CATALOG)
    try:
        own = [checker.name for checker in own_checkers(models)]
    except ValueError as problem:
        return f"its checkers are wrong: {problem}"
    if twice := [name for name in own if name in known or own.count(name) > 1]:
        return f"its own checker {twice[0]!r} has the name of another checker"
    if unknown := [name for name in names_in(models) if name not in known]:
        near = difflib.get_close_matches(unknown[0], known, 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        return f"there is no checker {unknown[0]!r}{meant} (known: {', '.join(sorted(known))})"
    if not own and not OF_CLIENTS & set(names_in(models)):
        return f"it names no checker of what clients saw: name one of {', '.join(sorted(OF_CLIENTS))}"
    return ""


def names_in(models: Collection[object]) -> list[str]:
    """Return the names among a workload's checkers."""
    return [each for each in models if isinstance(each, str)]


def select(offered: Collection[Need], models: Collection[object] = ()) -> list[Checker]:
    """Return the checkers whose needs are met: the user's own checkers, then those of the catalog in its order.

    offered: the needs that the run meets
    models: the workload's checkers; for these, the need "model" is met, too
    Raises WrongChecker.
    """
    every = (*own_checkers(models), *(BY_MODEL | CATALOG).values())
    named = {*names_in(models), *(checker.name for checker in own_checkers(models))}
    return [c for c in every if c.needs <= {*offered, *(("model",) if c.name in named else ())}]


def named_but_lacking(offered: Collection[Need], models: Collection[object]) -> dict[Checker, str]:
    """Return checker -> reason, in one sentence, for each checker of the workload that `select` leaves out."""
    every = BY_MODEL | CATALOG | {checker.name: checker for checker in own_checkers(models)}
    named = [*names_in(models), *(checker.name for checker in own_checkers(models))]
    lacking = {every[name]: sorted(every[name].needs - {*offered, "model"}) for name in named if name in every}
    return {
        checker: f"the workload names {checker.name}, but this run lacks what it needs: {', '.join(needs)}"
        for checker, needs in lacking.items()
        if needs
    }


def of_logs_and_traces() -> list[Checker]:
    """Return the checkers that need the servers' logs or traces."""
    return [checker for checker in _IN_ORDER if checker.needs & {"logs", "traces"}]
