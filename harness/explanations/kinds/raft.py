"""What the nodes of a Raft quorum may have done wrong: votes, leaders, logs, commits, applied states, processes."""

from __future__ import annotations

from collections.abc import Mapping

from harness.explanations.kinds.kind import Stage, ViolationKind, kinds

_STEPS = {
    "row without a cause": (
        "Every step of a node needs a cause: votes before it leads, copies on a majority before it calls a write "
        "committed. Here a node took a step whose cause no node's record shows."
    ),
}

_VOTES = {
    "voted twice in one epoch": (
        "In each epoch (a period of office) a node may vote for one candidate only. This node voted for two, so two "
        "nodes may both believe that they won the election."
    ),
    "vote not kept": (
        "A node must write its vote to disk before it sends it, so that it cannot vote again after a restart. This "
        "node sent a vote that its own files do not hold."
    ),
    "epoch went back": (
        "Epochs number the periods of office and only ever grow. Here a smaller number follows a larger one, so "
        "decisions of a newer leader can be forgotten."
    ),
}

_LEADERS = {
    "two leaders of one epoch": (
        "An epoch has one leader. Here two nodes reported of themselves that they lead the same one, so each may "
        "answer clients for itself."
    ),
    "an epoch that went back": (
        "Epochs only grow, and a node that has heard of one never goes back. Here a node reported a lower epoch than "
        "before, without a new start: it may follow a leader that was deposed."
    ),
    "two leaders in one epoch": (
        "One node at a time, the leader, decides the order of all writes, and each epoch may have one leader only. "
        "Here two nodes led in the same epoch, so each could accept writes of which the other knew nothing."
    ),
    "leader again after a restart": (
        "A leader that restarts must win a new election in a new epoch before it may lead again. This node went on "
        "leading in its old epoch, without knowing what had happened meanwhile."
    ),
    "leader without a committed entry": (
        "A new leader must hold everything that was ever committed, because all others copy its log. This leader "
        "lacked a committed entry when it was elected, so that entry is erased from the other nodes too."
    ),
}

_LOGS = {
    "entry that no client wrote": (
        "Every entry of a log comes from one operation of a client, from set-up, or from the system itself. This entry "
        "comes from none of them, so data has appeared or was changed on its way."
    ),
    "entry without a cause": (
        "Besides the writes of clients a log holds the opening entry of each epoch, and one batch for each object that "
        "was created. This log holds more, so data has changed without an operation."
    ),
    "epoch without its opening entry": (
        "A leader opens its epoch in the log with an entry of its own, before it takes the writes of clients. This "
        "epoch begins with a client's write, so it is unknown who led it."
    ),
    "logs differ below an equal epoch": (
        "Each node keeps the writes in a log, and two logs with the same entry must be equal in everything before it. "
        "Here two logs share a later epoch and still differ, so the nodes do not hold the same data."
    ),
    "log has a hole": (
        "The entries of a log have consecutive offsets (positions). Here some are missing in the middle, so the node "
        "cannot know what it should have applied there."
    ),
    "a replay of the log leads to another state": (
        "A node's state must follow from its log alone. A fresh state machine that replays this node's own log comes "
        "to another state than the node reported, so the node applied something else, or in another order."
    ),
    "disk replaced without a fault": (
        "A node's disk holds its vote and its log. This node came back with another disk although no fault had taken "
        "the first one, so it has forgotten what it promised."
    ),
    "voter joined before it had caught up": (
        "A new voter counts for majorities at once. This one lacked committed records when it became a voter, so a "
        "majority could be formed that does not hold them."
    ),
    "snapshot differs from its prefix": (
        "A snapshot replaces the beginning of a log and must stand for exactly the same writes. This one stands for "
        "others, so a node that starts from it holds wrong data."
    ),
    "snapshot beyond the high watermark": (
        "A snapshot may contain committed writes only, because it cannot be undone. This one contains writes that were "
        "not yet committed and may still be replaced."
    ),
    "log begins behind its snapshot": (
        "A log must go on where its snapshot ends. Here entries between the two are missing: the node has lost them."
    ),
}

_COMMITS = {
    "high watermark without a majority": (
        "A write is committed, that is promised to be kept, only when a majority of the nodes have it on disk. Here a "
        "node called writes committed that too few nodes held, so the loss of one node can lose them."
    ),
    "high watermark before its majority": (
        "A leader may call a write committed only after a majority of the nodes has it on disk. Here a leader counted "
        "a node that did not have the write yet, so for some time the loss of one node could have lost it."
    ),
    "acknowledged before it was committed": (
        "A leader may acknowledge a write only when it is committed, that is when a majority of the nodes hold it. "
        "Here the client got its answer before, so the write could still have been lost."
    ),
    "read of an uncommitted value": (
        "A read may return only what is committed, because the rest can still disappear. Here a client read a value "
        "before it was committed."
    ),
    "high watermark went back": (
        "The high watermark marks up to where the log is committed, and it never falls while a node runs. Here it "
        "fell, so the node took back a promise."
    ),
}

_LOSSES = {
    "committed entry lost": (
        "What was once committed must stay in the logs for ever. Here an entry that a node had called committed is "
        "missing from, or replaced in, a log that should hold it."
    ),
    "committed prefixes differ": (
        "All nodes must agree on everything that is committed. Here two nodes committed different entries at the same "
        "place, so clients of one see other data than clients of the other."
    ),
    "truncation below the high watermark": (
        "A node may cut away the uncommitted end of its log, and nothing else. Here it cut away, or was ordered to cut "
        "away, entries that were already committed."
    ),
    "acknowledged write missing from a log": (
        "A client got the answer that its write succeeded, so every complete log must hold that write. This log is "
        "complete and does not hold it: an acknowledged write is lost."
    ),
    "failed write in a log": (
        "A client got the answer that its write certainly did not happen. The write stands in a log all the same, so "
        "the client has drawn a wrong conclusion."
    ),
    "write in a log twice": (
        "Each write of a client may take effect once. This one stands in a log twice, so it can overwrite what was "
        "written between the two."
    ),
    "log order against real time": (
        "A write that was acknowledged before another began must stand before it in the log. Here the order is the "
        "reverse, so the older value can win."
    ),
}

_STATES = {
    "applied states differ": (
        "Nodes that have applied the same number of entries must hold the same data. Here two nodes did and hold "
        "different data."
    ),
    "applied beyond the high watermark": (
        "A node may show its clients only what is committed. Here it applied entries that were not committed and may "
        "still disappear."
    ),
    "applied offset went back": (
        "A node applies the entries of its log once and in order. Here it went back and applied some of them again."
    ),
}

_ANSWERS = {
    "read of a write that never happened": (
        "A client got no answer to a write, and no complete log holds it, so it never happened. Another client read "
        "its value all the same: it read what was not committed, or what was committed is lost."
    ),
}

_ANSWERS_OF_TWO = {
    "answer from the past": (
        "A leader must answer from everything that was committed before the operation was invoked. Here some node knew "
        "of a later committed value at that time, so the server that answered no longer led, or had forgotten."
    ),
    "answer against the order of the log": (
        "The log holds the writes in the order in which they took effect, and every answer must fit that order. This "
        "answer is older than one that a client had before this operation began."
    ),
}

_PROCESSES = {
    "node died": (
        "A node's process must run until the harness stops it, in spite of every fault. This process ended by itself; "
        "often it noticed that an earlier promise was broken and refused to go on."
    ),
    "no operation succeeded": (
        "A majority of the servers that runs and can talk must serve its clients, after a short time for an election. "
        "Here it served none of them for longer than the system states."
    ),
    "not recovered": (
        "When every fault is over the system must come back by itself. Here it still did not serve its clients after "
        "the time limit."
    ),
    "not readable any more": (
        "What could be read before must be readable again when every fault is over. Here the servers ran, and every "
        "read of every key was an error."
    ),
}

RAFT: Mapping[str, ViolationKind] = {
    **kinds(Stage.STEP, _STEPS),
    **kinds(Stage.VOTE, _VOTES),
    **kinds(Stage.LEADER, _LEADERS),
    **kinds(Stage.LOG, _LOGS),
    **kinds(Stage.COMMIT, _COMMITS),
    **kinds(Stage.LOSS, _LOSSES),
    **kinds(Stage.STATE, _STATES),
    **kinds(Stage.ANSWER, _ANSWERS),
    **kinds(Stage.ANSWER, _ANSWERS_OF_TWO, of_two=True),
    **kinds(Stage.PROCESS, _PROCESSES),
}
