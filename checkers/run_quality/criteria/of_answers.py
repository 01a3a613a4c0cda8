"""Did enough operations succeed, throughout the run, of every function, on every key and on every server?"""

from __future__ import annotations

from collections.abc import Collection

from checkers.base.demands import READS_OF_A_SERVER, Demands
from checkers.base.results import Criterion
from checkers.base.stored_run import StoredRun
from checkers.run_quality import processor_time
from checkers.run_quality.criteria import minimums
from checkers.run_quality.criteria import stretches as calm_stretches
from checkers.run_quality.criteria.history_figures import HistoryFigures
from checkers.run_quality.criteria.spans import calm_spans, main_phase, stretches_of

SHARE_OF_KEYS = 0.5
WAITED_LEAST = 0.5
"""Share of the missing time from which on time-outs explain it."""
LOWER_RATE = "give a lower --rate, or more --concurrency"


def never_invoked(demands: Demands, figures: HistoryFigures) -> list[str]:
    """The functions that the workload states and that no client invoked, sorted."""
    return sorted(demands.functions - figures.invoked_by_function.keys())


def about_operations(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """Whether operations were ok, of each function and on each key, at once and at the end."""
    keys = len(figures.keys)
    final_reads = run.outcome.final_reads
    read = sum(why == "ok" for why in final_reads.values()) if final_reads else figures.keys_read_at_end
    answered = {
        f: figures.ok_by_function[f] for f, n in figures.invoked_by_function.items() if n >= minimums.INVOKED_LEAST
    }
    silent = "".join(f"; {f} never was" for f, ok in sorted(answered.items()) if not ok)
    silent += "".join(f"; {f} was never invoked" for f in never_invoked(run.demands, figures))
    unread = sorted(k for k, why in final_reads.items() if why != "ok")
    return [
        Criterion(
            "ok operations",
            figures.ok,
            minimums.ok_operations_least(run.demands),
            _words_of_ok_operations(run.demands),
        ),
        Criterion(
            "ok reads in the main phase",
            figures.ok_main_reads,
            minimums.ok_reads_least(run.demands, figures.main_reads),
            f"of {figures.main_reads} that were invoked: the final reads alone show only how the run ended",
        ),
        Criterion(
            "functions with an ok answer",
            sum(map(bool, answered.values())),
            len(answered),
            f"of {len(answered)} that were invoked {minimums.INVOKED_LEAST} times or more" + silent,
        ),
        Criterion(
            "keys with concurrency",
            figures.concurrent_keys,
            max(1, keys * SHARE_OF_KEYS),
            f"of {keys} keys: two operations were open at once",
        ),
        Criterion(
            "keys read at the end",
            read,
            max(1, keys) if run.demands.final_reads else 0,
            "keys with an ok read after recovery" + (f"; not so: {', '.join(unread)}" if unread else ""),
        ),
    ]


def _words_of_ok_operations(demands: Demands) -> str:
    if demands.rate_hz:
        return f"of {minimums.operations_scheduled(demands):g} that could be ok{_waits(demands)}"
    if slowest := minimums.operations_of_slowest(demands):
        return f"a system that needs the whole operation timeout for each answer gives {slowest:.0f} without faults"
    return "without an answer there is nothing to judge"


def _waits(demands: Demands) -> str:
    """Why less than the scheduled rate is enough; "" where it is not."""
    if demands.invoked_share == 1.0:
        return ""
    return f"; clients of this workload wait between operations, so {demands.invoked_share:.0%} of the rate is enough"


def about_stretches(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """Whether answers came throughout the main phase.  A lock may be held all the while, so it is only shown there."""
    of_run, demands = stretches_of(run), run.demands
    if len(figures.ok_by_stretch) != len(of_run):
        return []  # the run has no history
    without, count = calm_stretches.silent(
        of_run, figures.invoked_by_stretch, figures.ok_by_stretch, demands.recovery_limit_s
    )
    if not count:
        return []
    words = f"of {count} stretches of {calm_stretches.STRETCH_S_LEAST:g} s or more outside faults"
    if without:
        begin_s = (without[0].begin_ns - main_phase(run)[0][0]) / 1e9
        words += f"; the first without one began {begin_s:.0f} s after the main phase"
    return [Criterion("stretches with an ok answer", count - len(without), count, words, demands.ok_share == 1.0)]


def about_the_rate(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """How much of its spec the run did: writes for each key, the rate outside faults, and servers that answered."""
    demands, criteria = run.demands, []
    if demands.keys and demands.writes:
        least = minimums.key_writes_least(demands)
        written = figures.keys_with_writes(demands.keys, least)
        words = f"of {len(demands.keys)} keys: at least {least} writes were acknowledged"
        criteria.append(Criterion("keys with enough ok writes", written, minimums.keys_least(demands), words))
    calm_s, main_s = (sum(end - begin for begin, end in spans) / 1e9 for spans in (calm_spans(run), main_phase(run)))
    if demands.rate_hz and calm_s > 0:
        calm_hz, main_hz = figures.calm_operations / calm_s, figures.main_operations / main_s
        words = (
            f"{calm_hz:.0f} operations per second in {calm_s:.0f} s outside faults, {main_hz:.0f} in all, "
            f"of {demands.rate_hz / demands.invoked_share:g} that were scheduled{_waits(demands)}"
        )
        share = round(max(calm_hz, main_hz) * demands.invoked_share / demands.rate_hz, 3)
        long_enough = calm_s >= minimums.CALM_S_LEAST
        criteria.append(
            Criterion(
                "share of the scheduled rate",
                share,
                round(minimums.SHARE_OF_RATE * demands.invoked_share, 3),
                words,
                long_enough,
                _advice(run, figures, calm_s),
            )
        )
    return criteria + (_about_servers(run, figures) if demands.servers else [])


def _advice(run: StoredRun, figures: HistoryFigures, calm_s: float) -> str:
    """Return what to do where clients invoked less than was scheduled, from what was measured under normal conditions.

    A thread that waits for a time-out invokes nothing.  If such waits explain most of what is missing, it is the system
    that did not answer, however busy the machine was.  In the seconds after a heal a system recovers, so they say
    nothing of its rate."""
    waited_s = figures.calm_timeouts * run.demands.op_timeout_s / max(run.demands.concurrency, 1)
    missing_s = calm_s * (1 - figures.calm_operations / calm_s / run.demands.rate_hz)
    if waited_s > WAITED_LEAST * missing_s > 0:
        of = f"{figures.calm_timeouts} operations outside faults ended by their time-out"
        return f"{of}, which explains most of what is missing: the system did not answer them"
    (main, *_) = main_phase(run)
    if busy := processor_time.busy_in_words(processor_time.shares_between(run.outcome, *main)):
        return f"this machine was busy, {'; '.join(busy)}: {LOWER_RATE}"
    grace_ns = int(calm_stretches.GRACE_NS * max(1.0, run.demands.holds))
    normal_s = sum(end - begin for begin, end in minimums.calm(main, run.faults, grace_ns)) / 1e9
    if normal_s < minimums.CALM_S_LEAST:
        return (
            f"the figures are of faults and of recovery: only {normal_s:.0f} s were far from any fault; give a longer "
            "--time-limit"
        )
    return f"the system answers more slowly than that: {LOWER_RATE}"


def _about_servers(run: StoredRun, figures: HistoryFigures) -> list[Criterion]:
    """Which servers answered clients.  One whose disk a fault damaged may be gone, so nothing is demanded of it."""
    demands = run.demands
    sound = set(demands.servers) - set(run.damaged_from)
    least = min(len(sound), demands.concurrency or len(sound)) if demands.each_server_serves else 1
    least = 0 if demands.routes_by_itself else least
    kept_to = "each has clients of its own" if least > 1 else "a server that never leads may answer nothing"

    def criterion(name: str, answering: Collection[str], what: str) -> Criterion:
        silent = sorted(sound - set(answering))
        words = f"of {len(demands.servers)} servers {what}; {kept_to}"
        words += f"; not so: {', '.join(silent)}" if least > 1 and silent else ""
        return Criterion(name, len(sound & set(answering)) if least > 1 else len(answering), least, words)

    known = set(demands.servers)
    criteria = [criterion("servers that answered clients", figures.answering & known, "gave an ok answer")]
    if demands.each_server_read_at_end:
        wanted = {key or "" for _, key in demands.final_reads[:READS_OF_A_SERVER]}
        whole = {node for node in known if wanted <= figures.read_at_end.get(node, frozenset())}
        read = criterion("servers read at the end", whole, f"answered a read of each of {len(wanted)} keys at the end")
        criteria.append(read)
    return criteria
