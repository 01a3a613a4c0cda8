"""Steps that the rules of the consensus protocol do not allow.  Each is of one node and stands in its own record."""

from __future__ import annotations

from collections.abc import Mapping

from harness.explanations.kinds.kind import Stage, ViolationKind, kinds

_STEPS = {
    "row contradicts the rows before it": (
        "A node's record of itself must be a possible sequence of steps. This step does not follow from the ones "
        "before it."
    ),
}

_VOTES = {
    "vote for a stranger": (
        "Votes may go to members of the group of voters only. This node voted for one that is no member."
    ),
    "vote out of turn": (
        "A node may vote only in its own epoch and while it knows no leader there. This node voted at another moment, "
        "so it may help to elect a second leader."
    ),
    "vote for a log that is behind": (
        "A node may vote only for a candidate whose log is at least as complete as its own. This candidate's log was "
        "behind, so committed entries can be lost if it wins."
    ),
    "candidate without its own vote": (
        "A candidate votes for itself first, which counts towards its majority. This one had not."
    ),
}

_LEADERS = {
    "impossible change of role": (
        "A node moves between the roles of follower, candidate and leader by fixed rules. This change is not among "
        "them, so the node acted in a role that it did not have."
    ),
}

_LOGS = {
    "more recovered than written": (
        "After a restart a node may find what it wrote before, and no more. This node found entries that it never "
        "wrote."
    ),
    "flushed entries lost": (
        "What a node has flushed to disk must be there after a restart. This node lost some of it, although it had "
        "already counted as safe."
    ),
    "append out of turn": (
        "Only a leader, and followers that copy from it, add entries to their logs. This node was neither when it "
        "added some."
    ),
    "append to another log than the leader's": (
        "A follower may add the leader's entries only where its own log is equal to the leader's so far. This one was "
        "not, so the two logs now differ below what they share."
    ),
    "entry of another epoch": (
        "A follower holds the entries that its leader holds, with the same epochs. This entry has another epoch."
    ),
    "truncation out of turn": (
        "Only a follower may cut the end of its log, to become equal to its leader's. This node was no follower."
    ),
    "truncation of what the leader holds": (
        "A follower may cut away only what differs from its leader's log. This one cut away entries that the leader "
        "holds as well."
    ),
    "snapshot beyond what was applied": (
        "A node takes a snapshot of the state that it has reached by applying committed writes. This one reaches "
        "further than what the node had applied."
    ),
    "snapshot below the high watermark": (
        "A follower fetches a snapshot because it lacks what the snapshot stands for. This follower knew more writes "
        "to be committed than the snapshot holds."
    ),
    "snapshot out of turn": (
        "Only a follower fetches snapshots, and only from its leader. This node was no follower of the node that it "
        "names."
    ),
    "log ends below its snapshot": (
        "A log goes on where its newest snapshot ends. The log that this node found when it started ends before that."
    ),
    "prefix hash contradicts the log": (
        "A node records a hash of everything in its log up to each entry. This hash does not belong to the entries "
        "that the log must hold there."
    ),
    "other voters in one entry": (
        "An entry that changes the voters names the same voters on every node. Here two nodes hold the same entry and "
        "read different voters from it."
    ),
}

_COMMITS = {
    "mark out of turn": (
        "Only a leader and its followers may advance the mark of what is committed. This node was neither."
    ),
    "mark beyond the log": (
        "A node may call committed only what it has safely in its own log. This mark lies beyond that."
    ),
    "mark without an entry of its epoch": (
        "A new leader may commit older entries only together with one of its own, because older ones can still be "
        "replaced. This leader did it without (figure 8 of the Raft paper)."
    ),
    "mark over another log than the leader's": (
        "What a node calls committed must be the leader's log or its beginning. Here the node's log differs from the "
        "leader's below the mark."
    ),
}

_STATES = {
    "applied out of order": (
        "A node applies committed entries once and in order. Here it applied some that were not next, or not committed."
    ),
    "batch skipped or split": (
        "Every node applies the same batches of entries, one after another. Here a node left one out or applied a part "
        "of it."
    ),
}

STEPS: Mapping[str, ViolationKind] = {
    **kinds(Stage.STEP, _STEPS),
    **kinds(Stage.VOTE, _VOTES),
    **kinds(Stage.LEADER, _LEADERS),
    **kinds(Stage.LOG, _LOGS),
    **kinds(Stage.COMMIT, _COMMITS),
    **kinds(Stage.STATE, _STATES),
}
