"""The checkers of traces.  Each checker combines the findings of the shared parts (`trace_checkers.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from checkers.base.checker import Checker, Need
from checkers.base.stored_rows import log_rows, log_start
from checkers.base.stored_run import StoredRun, gaps, node_files
from checkers.base.verdict import MAX_WITNESSES, Validity, Verdict, Witness, conclude, one_of_each_first
from checkers.raft import rules, trace_checkers
from checkers.raft.monitor import Leaders, NodeReport, Reach, elected, named_by, sets_apart
from checkers.raft.reading import nothing_of
from checkers.raft.rules import Row, TraceRow, copy_row
from checkers.record.header_and_outcome import one_clock

NOT_ONE_CLOCK = "the servers do not share a monotonic clock"


class TraceFindings(NamedTuple):
    """The findings of the shared parts of a run, by kind of part."""

    run: StoredRun
    nodes: list[NodeReport]
    ranges: list[trace_checkers.StatesFinding]
    timed: list[trace_checkers.TimedFinding]

    def broken(self, checker: str) -> list[Witness]:
        """Return the violations of a checker's rules that were found in the rows of single nodes."""
        return [b.witness() for report in self.nodes for b in report.broken if b.rule.checker == checker]

    def sums(self, *names: str) -> dict[str, int]:
        return {name: sum(report.counts.get(name, 0) for report in self.nodes) for name in names}

    def conclude(
        self, witnesses: Sequence[Witness], figures: Mapping[str, int], *needed: str, unknown: Sequence[str] = ()
    ) -> Verdict:
        """Return the verdict.

        needed: names of figures; if one of them is 0, the verdict is unknown
        """
        looked_at = {"nodes": len(node_files(self.run.trace)), **figures}
        lacking = gaps(self.run, "traces") + nothing_of(looked_at, *needed)
        return conclude(witnesses, looked_at, [*unknown, *lacking])


OF_TRACES: list[Checker] = []


def _of_traces(
    name: str, title: str, question: str, *more: Need
) -> Callable[[Callable[[TraceFindings], Verdict]], Callable[[TraceFindings], Verdict]]:
    """Make a checker of the decorated function.

    more: needs of the checker besides traces
    """

    def checker(combine: Callable[[TraceFindings], Verdict]) -> Callable[[TraceFindings], Verdict]:
        def of_findings(run: StoredRun, findings: Sequence[trace_checkers.Finding]) -> Verdict:
            nodes = [each for each in findings if isinstance(each, NodeReport)]
            ranges = [each for each in findings if isinstance(each, trace_checkers.StatesFinding)]
            return combine(
                TraceFindings(run, nodes, ranges, [f for f in findings if isinstance(f, trace_checkers.TimedFinding)])
            )

        needs = frozenset({"traces", *more})
        OF_TRACES.append(
            Checker(name, title, question, trace_checkers.split_traces, trace_checkers.judge_traces, of_findings, needs)
        )
        return combine

    return checker


# Elections and votes


@_of_traces("election-safety", "Election safety", "Was there at most one leader in every epoch?")
def _leaders(found: TraceFindings) -> Verdict:
    leaders = Leaders()
    claims = [row for report in found.nodes for row in report.claims]
    for row in claims:
        leaders.take(row)
    votes = [row for report in found.nodes for row in report.votes]
    suspicious = leaders.suspicious
    witnesses = [
        elected(epoch, [row for row in claims if row.epoch == epoch], [row for row in votes if row.epoch == epoch])
        for epoch in suspicious[:MAX_WITNESSES]
    ]
    own = sum(row.role == "leader" for row in claims)
    figures = {"epochs with a leader": leaders.epochs, "times a node became leader": own}
    if suspicious:
        figures["epochs with a violation"] = figures["violations"] = len(suspicious)
    return found.conclude(witnesses, figures, "epochs with a leader")


@_of_traces("vote-once", "One vote per epoch", "Did every voter vote at most once in an epoch, restarts included?")
def _votes(found: TraceFindings) -> Verdict:
    """Verify that the vote in each copied quorum-state file equals the vote that the node had reported before.

    After a restart a voter knows its earlier votes only from this file.
    """
    witnesses = found.broken("vote-once")
    files = 0
    for report in found.nodes:
        lost = ((at.copy, at.vote) for at in report.copies if at.same_disk and at.vote is not None)
        for copy, vote in [pair for pair in lost if pair[1].peer != pair[0]["voted_for"]][:1]:
            given = f"{vote.node} gave its vote in epoch {vote.epoch} to {vote.peer} ({vote.where})."
            witnesses.append(_quorum_state_disagrees(str(vote.peer), (vote.as_row(), copy_row(copy)), given))
        copies = [at.copy for at in report.copies]
        witnesses += _copies_disagree(copies)
        files += sum(copy["quorum_epoch"] >= 0 for copy in copies)
    return found.conclude(witnesses, {**found.sums("votes"), "quorum-state files": files}, "votes")


def _copies_disagree(copied: Sequence[Row]) -> list[Witness]:
    """Return the first two successive copies that have the same epoch but different votes."""
    for earlier, later in pairwise(copied):
        given = earlier["voted_for"]
        comparable = all(earlier.get(name) == later.get(name) for name in ("quorum_epoch", "disk"))
        if comparable and given is not None and later["voted_for"] != given:
            why = f"Copy {earlier['copy']} ({earlier['when']}) found a vote of {later['node']} for {given}."
            return [_quorum_state_disagrees(given, (copy_row(earlier), copy_row(later)), why)]
    return []


def _quorum_state_disagrees(given: str, rows: tuple[Row, Row], why: str) -> Witness:
    copy = rows[-1]
    node, epoch, kept = copy["node"], copy["quorum_epoch"], copy["voted_for"]
    holds = f"a vote for {kept}" if kept is not None else "no vote"
    return Witness.of(
        rules.VOTED_TWICE if kept is not None else rules.VOTE_NOT_KEPT,
        f"{node} voted for {given} in epoch {epoch}, but later its quorum-state holds {holds} in that epoch.",
        rows,
        nodes=[node, given],
        epoch=epoch,
        why=[why, f"Copy {copy['copy']} ({copy['when']}), taken later, finds {holds} of epoch {epoch} there."],
        expected="a vote is kept for as long as its epoch lasts, or the voter can vote again after a restart",
    )


@_of_traces(
    "vote-up-to-date",
    "Votes for logs that are up to date",
    "Did every vote go to a log at least as up to date as the voter's own?",
)
def _up_to_date(found: TraceFindings) -> Verdict:
    """Verify that each vote went to a log at least as up to date as the voter's own.

    A vote is wrong only if the candidate's log was certainly behind in every row that shows this candidacy.  A vote for
    a node that reports no candidacy is not judged.
    """
    stood: dict[tuple[int, str], list[tuple[TraceRow, rules.LogAt]]] = {}
    for report in found.nodes:
        for row, _, log in report.candidacies:
            stood.setdefault((row.epoch, report.node), []).append((row, log))
    ballots = [ballot for report in found.nodes for ballot in report.ballots]
    shown = [stood.get((vote.epoch, peer), []) for vote, peer, _ in ballots]
    wrong = [
        _behind(vote, own, *candidacies[-1])
        for (vote, _, own), candidacies in zip(ballots, shown, strict=True)
        if candidacies and all(log.behind(own) for _, log in candidacies)
    ]
    wrong.sort(key=lambda witness: (witness.facts["epoch"], witness.facts["nodes"][0]))
    figures = {"votes for others": len(ballots), "votes compared": sum(map(bool, shown))}
    return found.conclude(wrong, figures, *(["votes compared"] if len(found.run.servers) > 1 else []))


def _behind(vote: TraceRow, own: rules.LogAt, candidacy: TraceRow, log: rules.LogAt) -> Witness:
    epoch, peer = vote.epoch, candidacy.node
    return Witness.of(
        rules.BEHIND_VOTE,
        f"{vote.node} voted for {peer} in epoch {epoch}, whose log was behind its own.",
        (vote.as_row(), candidacy.as_row()),
        nodes=[vote.node, peer],
        epoch=epoch,
        offset=log.end,
        why=[
            f"The log of {peer} {_shown(log)} when it stood for epoch {epoch} ({candidacy.where}).",
            f"The log of {vote.node} {_shown(own)} when it voted ({vote.where}).",
        ],
        expected="a vote goes only to a log at least as up to date as the voter's own: otherwise a leader may lack "
        "what is committed",
    )


def _shown(log: rules.LogAt) -> str:
    if log.end == 0:
        return "was empty"
    epoch = f"epoch {log.lowest}" if log.lowest == log.highest else f"an epoch from {log.lowest} to {log.highest}"
    return f"ended at offset {log.end} with an entry of {epoch}"


# Epochs, disks and states of one node


@_of_traces(
    "monotonicity",
    "Epochs and marks only rise",
    "Did epochs never go back, and high watermarks never within one life of a process?",
)
def _monotonicity(found: TraceFindings) -> Verdict:
    """Verify that quorum-state holds no lower epoch than the node had reported.

    A node must write an epoch to disk before it uses the epoch.
    """
    witnesses = found.broken("monotonicity")
    missing, files = [], 0
    logs = node_files(found.run.log)
    for report in found.nodes:
        at_disk = [(at.copy, at.highest_epoch) for at in report.copies if at.same_disk and at.highest_epoch is not None]
        behind = next(((c, row) for c, row in at_disk if 0 <= c["quorum_epoch"] < row.epoch), None)
        if behind is not None:
            copy, top = behind
            why = f"{copy['node']} reported that it was in epoch {top.epoch} ({top.where})."
            witnesses.append(_quorum_state_behind(copy, top.as_row(), why))
        if report.copies and 0 <= (last := report.copies[-1].copy)["quorum_epoch"] < report.log_epoch[1]:
            at, epoch = report.log_epoch
            why = f"The log of {last['node']} has an entry of epoch {epoch} at offset {at}."
            (higher,) = log_rows(logs[report.node], last["copy"], [at])
            witnesses.append(_quorum_state_behind(last, higher, why))
        files += sum(at.copy["quorum_epoch"] >= 0 for at in report.copies)
        missing += [
            f"copy {copy['copy']} of {copy['node']} ({copy['when']}) holds no quorum-state file"
            for copy, row in at_disk
            if copy["quorum_epoch"] < 0 and row.epoch > 0
        ]
    counts = found.sums("epochs reported", "high watermarks")
    return found.conclude(witnesses, {**counts, "quorum-state files": files}, *counts, unknown=missing)


def _quorum_state_behind(copy: Row, higher: Row, why: str) -> Witness:
    node, epoch = copy["node"], copy["quorum_epoch"]
    return Witness.of(
        rules.EPOCH_BACK,
        f"{node} had reached epoch {higher['epoch']}, but its quorum-state holds epoch {epoch}.",
        (higher, copy_row(copy)),
        nodes=[node],
        epoch=higher["epoch"],
        offset=higher["offset"],
        why=[why, f"Copy {copy['copy']} ({copy['when']}) finds epoch {epoch} in its quorum-state."],
        expected="an epoch is on disk before another node learns of it, and before an entry of it is written",
    )


@_of_traces(
    "kept-disk",
    "Nodes keep their disks",
    "Did the directory id of a node's disk (its `disk` rows) change only where a fault took the disk?",
)
def _disks(found: TraceFindings) -> Verdict:
    """Verify that a node has another disk than before only if a fault wiped the previous disk.

    If the nodes have separate clocks, such a fault on the node explains the new disk at any time.  A fault must also
    explain a copied disk that no row of the trace names.
    """
    run, counts = found.run, found.sums("disks named", "disks replaced")
    if not counts["disks named"]:
        return Verdict(Validity.NOT_APPLICABLE, reason="no trace names a disk")
    witnesses = found.broken("kept-disk")
    for report in found.nodes:
        taken_ns = {copy.copy: copy.taken_ns for copy in run.copies_index if copy.node == report.node}
        witnesses += unnamed_disks(report, trace_checkers.spans_of(run, report.node), taken_ns)
    return found.conclude(witnesses, counts)


def unnamed_disks(
    report: NodeReport, spans: Sequence[trace_checkers.Span], taken_ns: Mapping[int, int]
) -> list[Witness]:
    """Return the violations of copied disks that no row names and no fault explains.

    taken_ns: number of a copy -> time when the copy was complete, in ns; -1 if the time is unknown
    """
    witnesses = []
    for at in report.copies:
        copy = at.copy
        if copy.get("disk") is None or copy["disk"] in report.disks or at.disk is None:
            continue
        taken = taken_ns.get(copy["copy"], -1)
        if not trace_checkers.explained(spans, at.last_ns, taken if taken >= 0 else trace_checkers.FOREVER_NS):
            words = {"disk": copy["disk"], "found": f"in copy {copy['copy']} ({copy['when']})"}
            witnesses.append(rules.breach(rules.DISK_REPLACED, (at.disk,), words).witness([copy_row(copy)]))
    return witnesses


@_of_traces(
    "state-machine-safety",
    "State machine safety",
    "Did all nodes that applied the same entries reach the same state, and apply only what was committed?",
)
def _states(found: TraceFindings) -> Verdict:
    witnesses = found.broken("state-machine-safety") + [w for each in found.ranges for w in each.states]
    counts = {
        "applied states": sum(each.applied for each in found.ranges),
        "offsets compared": sum(each.compared for each in found.ranges),
    }
    needed = list(counts)[: len(found.run.servers)]  # a single server has no other to compare with
    return found.conclude(witnesses, counts, *needed, unknown=_broken_files(found))


# Snapshots


@_of_traces(
    "snapshot-equals-prefix",
    "Snapshot equals prefix",
    "Does every snapshot hold what its prefix of the log leads to, and does every log join its snapshot?",
)
def _snapshots(found: TraceFindings) -> Verdict:
    """Verify snapshots.  A snapshot (end, exclusive; epoch) replaces the log below its end (KIP-630).

    A snapshot must contain the state after all entries below its end, and these entries must be committed.  A log that
    begins above 0 must begin at or below the end of a snapshot of its node.
    """
    run, reports = found.run, found.nodes
    begun, cut_logs = _log_starts(run, reports)
    snapshots = sum(len(report.snapshots) for report in reports)
    broken = _broken_files(found)
    if snapshots == 0 and cut_logs == 0 and not broken:
        return Verdict(Validity.NOT_APPLICABLE, reason="no node took a snapshot, and every log begins at offset 0")
    committed = max((report.largest_mark for report in reports), default=0)
    late = [
        rules.breach(rules.SNAPSHOT_BEYOND, (row,), {"known": "not known yet"}).witness()
        for report in reports
        for row in report.snapshots
        if row.peer is not None and (row.offset or 0) > committed
    ]
    witnesses = [w for each in found.ranges for w in each.snapshots]
    figures = {
        "snapshots": snapshots,
        "files of snapshots": sum(not file["error"] for copy in run.copies for file in copy.get("snapshots") or ()),
        "ends at which states were compared": sum(each.compared_snapshots for each in found.ranges),
        "logs that begin above 0": cut_logs,
    }
    return found.conclude(witnesses + late + found.broken("snapshot-equals-prefix") + begun, figures, unknown=broken)


def _broken_files(found: TraceFindings) -> list[str]:
    return [each.broken_files for each in found.ranges if each.broken_files]


def _log_starts(run: StoredRun, reports: Sequence[NodeReport]) -> tuple[list[Witness], int]:
    """Return (witnesses of logs that begin above all snapshots of their node, number of logs that begin above 0)."""
    logs, witnesses, cut_logs = node_files(run.log), list[Witness](), 0
    for report in reports:
        if (path := logs.get(report.node)) is None:
            continue
        # A log that begins above all snapshots may be unreadable, yet its start shows the violation.
        for copy in (c for c in run.copies if c["node"] == report.node and (not c["error"] or c.get("log_start"))):
            start = copy.get("log_start")
            start = log_start(path, copy["copy"]) if start is None else start
            cut_logs += start > 0
            had = [row for row in report.snapshots if row.seq <= copy["trace_seq"]]
            on_disk = max((each["end_offset"] for each in copy.get("snapshots") or () if not each["error"]), default=0)
            newest = max([on_disk, *(row.offset or 0 for row in had)])
            if start > newest:
                last = [row for row in had if row.offset == newest][:1]
                witnesses.append(_begins_late(path, copy, start, newest, last))
    return witnesses, cut_logs


def _begins_late(path: str, copy: Row, start: int, newest: int, snapshot: Sequence[TraceRow]) -> Witness:
    node = copy["node"]
    has = f"the newest snapshot of {node} ends at {newest}" if snapshot else f"{node} had no snapshot"
    return Witness.of(
        rules.BEGINS_LATE,
        f"The log of {node} (copy {copy['copy']}) begins at offset {start}, but {has}.",
        (*(row.as_row() for row in snapshot), *log_rows(path, copy["copy"], [start]), copy_row(copy)),
        nodes=[node],
        copies=[copy["copy"]],
        epoch=copy["quorum_epoch"],
        offset=start,
        why=[f"Entries {newest} to {start - 1} are in no snapshot of {node} and not in its log."],
        expected="a log is cut only below the end of a snapshot",
    )


# Commits


@_of_traces(
    "commit-own-epoch",
    "A leader commits an entry of its own epoch first",
    "Did every leader commit older entries only together with one of its own epoch?",
)
def _own_epoch(found: TraceFindings) -> Verdict:
    counts = found.sums("leaders' high watermarks")
    return found.conclude(found.broken("commit-own-epoch"), counts, *counts)


@_of_traces(
    "quorum-intersection",
    "Voters change one at a time",
    "Do majorities before and after every change of the voters share a voter?",
    "kraft-steps",
)
def _voters(found: TraceFindings) -> Verdict:
    """Verify the committed sets of voters.

    A set is committed if any node reported a high watermark above the offset of its record.
    """
    named = [row for report in found.nodes for row in report.sets]
    if not named and not gaps(found.run, "traces"):
        return Verdict(Validity.NOT_APPLICABLE, reason="no log names voters: they cannot change")
    mark = max((report.largest_mark for report in found.nodes), default=-1)
    committed = sorted((r for r in named if (r.offset or 0) < mark), key=lambda r: (r.offset or 0, r.seq))
    figures = {
        "committed sets of voters": len({row.offset for row in committed}),
        **found.sums("changes by leaders"),
    }
    witnesses = found.broken("quorum-intersection") + sets_apart(committed)
    return found.conclude(witnesses, figures, "committed sets of voters")


@_of_traces(
    "high-watermark-majority",
    "High watermark held by a majority",
    "Did a majority of voters durably hold everything that was ever called committed?",
    "logs",
)
def _majority(found: TraceFindings) -> Verdict:
    """Verify, for each high watermark, that a majority durably held all entries below it in its epoch or earlier.

    A high watermark of epoch e that lies above the start of this epoch has an entry of epoch e right below it.  A log
    whose last batch is of epoch e is a prefix of the leader's log.  So a node can have held the high watermark only
    while its last batch was of epoch e.  For other high watermarks (a lagging follower may report one), or if the
    leader is unknown, only the length of a log decides.

    A leader counts the voters that its own log named last.  A follower repeats the high watermark of a leader whose log
    may have named other voters, so a majority of any set that any trace names is enough.  Entries that a node may have
    had count as held.  Only high watermarks before the last copy of their node are judged, because all traces were
    collected after this copy.
    """
    reports = found.nodes
    named = sorted({named_by(row) for report in reports for row in report.sets}, key=sorted)
    reaches = {report.node: report.reach for report in reports}
    starts: dict[int, list[int]] = {}
    for row in (row for report in reports for row in report.offices):
        starts.setdefault(row.epoch, []).append(-1 if row.offset is None else row.offset)
    witnesses = []
    judged = [top for report in reports for top in report.tops]
    for mark, counted in judged:
        start = starts.get(mark.epoch, [])
        end = mark.offset or 0
        beyond_start = len(start) == 1 and 0 <= start[0] < end
        lacks = {n for n, reach in reaches.items() if not reach.may_have_held(end, mark.epoch, beyond_start)}
        sets = [sorted(counted)] if counted else [sorted(names) for names in named] or [list(found.run.servers)]
        if all(2 * len(lacks.intersection(voters)) >= len(voters) for voters in sets):
            without = [voter for voter in sets[0] if voter in lacks]
            witnesses.append(_without_majority(mark, sets[0], without, reaches, beyond_start))
    looked_at = {
        "voters": len(found.run.servers),
        "high watermarks": found.sums("marks before the last copy")["marks before the last copy"],
        "epochs with one": len({mark.epoch for mark, _ in judged}),
    }
    unknown = gaps(found.run, "traces") + nothing_of(looked_at, "high watermarks")
    witnesses.sort(key=lambda w: (w.facts["epoch"], -w.facts["offset"]))
    # several nodes repeat the high watermark of their leader
    ranked = one_of_each_first(witnesses, lambda w: w.facts["epoch"])
    return conclude(ranked, looked_at, unknown)


def _without_majority(
    mark: TraceRow, voters: Sequence[str], without: Sequence[str], reaches: Mapping[str, Reach], beyond_start: bool
) -> Witness:
    node, epoch, offset = mark.node, mark.epoch, mark.offset or 0
    with_it = [voter for voter in voters if voter not in without]
    held = f"only {', '.join(with_it)} of {len(voters)} voters" if with_it else f"none of {len(voters)} voters"
    why = [f"{node} reported in epoch {epoch} ({mark.where}) that everything below {offset} is committed."]
    for voter in without:
        reach = reaches[voter]
        if beyond_start:
            end = reach.own.get(epoch, 0)
            what = f"held entries of epoch {epoch} only up to offset {end}" if end > 0 else "held none of its entries"
            why.append(f"{voter}: while it was in epoch {epoch}, its disk {what}.")
        else:
            why.append(f"{voter}: up to epoch {epoch}, its log was durable only up to offset {reach.longest(epoch)}.")
    return Witness.of(
        rules.NO_MAJORITY,
        f"{node} called everything below offset {offset} committed in epoch {epoch}, but {held} had ever held it "
        "durably by then.",
        (mark.as_row(),),
        nodes=[node, *without],
        epoch=epoch,
        offset=offset - 1,
        committed_below=offset,
        may_have_held=with_it,
        why=why,
        expected="a majority of voters holds on disk what is committed, so that every majority that elects a leader "
        "has it",
    )


@_of_traces(
    "majority-before-mark",
    "A majority holds it before it is called committed",
    "Did a majority of voters durably hold everything at the time when its leader called it committed?",
    "logs",
)
def _before_mark(found: TraceFindings) -> Verdict:
    """Verify, by one shared clock, that a majority already held each high watermark when the leader reported it."""
    if not one_clock(found.run.header):
        return Verdict(Validity.NOT_APPLICABLE, reason=NOT_ONE_CLOCK)
    name = "majority-before-mark"
    looked_at = {"high watermarks": sum(each.marks for each in found.timed)}
    if violations := sum(each.counts.get(name, 0) for each in found.timed):
        looked_at["violations"] = violations
    unknown = gaps(found.run, "traces") + nothing_of(looked_at, "high watermarks")
    return conclude([w for each in found.timed for w in each.witnesses.get(name, ())], looked_at, unknown)


@_of_traces(
    "voters-caught-up",
    "Voters join once they have caught up",
    "Had every voter that joined fetched the leader's log before it counted?",
    "kraft-steps",
)
def _joined(found: TraceFindings) -> Verdict:
    """Verify that each new voter had fetched the leader's log before it joined.

    A voter that joins with an empty log endangers no entry, but it may block commits until it has fetched the log.
    """
    if not one_clock(found.run.header):
        return Verdict(Validity.NOT_APPLICABLE, reason=NOT_ONE_CLOCK)
    joined, unknown = sum(each.joined for each in found.timed), gaps(found.run, "traces")
    if not joined and not unknown:
        return Verdict(Validity.NOT_APPLICABLE, reason="no voter joined")
    witnesses = [w for each in found.timed for w in each.witnesses.get("voters-caught-up", ())]
    return conclude(witnesses, {"voters that joined": joined}, unknown)
