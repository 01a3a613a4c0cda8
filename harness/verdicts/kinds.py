"""Every kind of violation: how deep it lies, and two sentences for a reader who has never met Raft.

A violation has causes and effects.  A node votes twice, so two nodes lead; two leaders write two logs, so an entry that
was committed disappears, and in the end a client reads an old value.  `Stage` numbers these steps.  A page that names
the deepest violation first names the cause, or what lies nearest to it.

`means` explains a kind in two sentences: what the system promises, and what happened here.  `known_as` is the name that
users of databases know, where a checker uses the name of a theory (Adya 1999; Cerone & Gotsman 2016).  A kind that is
not in the table is a violation of an answer without an explanation; a test keeps the table complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class Stage(IntEnum):
    """How far a violation lies from its cause: the smaller, the nearer."""

    STEP = 0
    VOTE = 1
    LEADER = 2
    LOG = 3
    COMMIT = 4
    LOSS = 5
    STATE = 6
    ANSWER = 7
    PROCESS = 8


MECHANISMS: Mapping[Stage, str] = {
    Stage.STEP: "Steps of the protocol",
    Stage.VOTE: "Votes",
    Stage.LEADER: "Leadership",
    Stage.LOG: "Logs",
    Stage.COMMIT: "Commits",
    Stage.LOSS: "Commits",
    Stage.STATE: "Applied states",
    Stage.ANSWER: "Answers to clients",
    Stage.PROCESS: "Processes",
}
"""Which part of the system broke.  Violations of one mechanism are shown together."""


@dataclass(frozen=True, slots=True)
class Kind:
    """means: two sentences, "" for a kind that is not in the table.  known_as: its everyday name, if it has another."""

    stage: Stage
    means: str = ""
    known_as: str = ""

    @property
    def mechanism(self) -> str:
        return MECHANISMS[self.stage]


_UNKNOWN = Kind(Stage.ANSWER)

_RAFT: dict[str, Kind] = {
    "row without a cause": Kind(
        Stage.STEP,
        "Every step of a node needs a cause: votes before it leads, copies on a majority before it calls a write "
        "committed. Here a node took a step whose cause no node's record shows.",
    ),
    "entry that no client wrote": Kind(
        Stage.LOG,
        "Every entry of a log comes from one operation of a client, from set-up, or from the system itself. This entry "
        "comes from none of them, so data has appeared or was changed on its way.",
    ),
    "voted twice in one epoch": Kind(
        Stage.VOTE,
        "In each epoch (a period of office) a node may vote for one candidate only. This node voted for two, so two "
        "nodes may both believe that they won the election.",
    ),
    "vote not kept": Kind(
        Stage.VOTE,
        "A node must write its vote to disk before it sends it, so that it cannot vote again after a restart. This "
        "node sent a vote that its own files do not hold.",
    ),
    "epoch went back": Kind(
        Stage.VOTE,
        "Epochs number the periods of office and only ever grow. Here a smaller number follows a larger one, so "
        "decisions of a newer leader can be forgotten.",
    ),
    "two leaders in one epoch": Kind(
        Stage.LEADER,
        "One node at a time, the leader, decides the order of all writes, and each epoch may have one leader only. "
        "Here two nodes led in the same epoch, so each could accept writes of which the other knew nothing.",
    ),
    "leader again after a restart": Kind(
        Stage.LEADER,
        "A leader that restarts must win a new election in a new epoch before it may lead again. This node went on "
        "leading in its old epoch, without knowing what had happened meanwhile.",
    ),
    "leader without a committed entry": Kind(
        Stage.LEADER,
        "A new leader must hold everything that was ever committed, because all others copy its log. This leader "
        "lacked a committed entry when it was elected, so that entry is erased from the other nodes too.",
    ),
    "logs differ below an equal epoch": Kind(
        Stage.LOG,
        "Each node keeps the writes in a log, and two logs with the same entry must be equal in everything before it. "
        "Here two logs share a later epoch and still differ, so the nodes do not hold the same data.",
    ),
    "log has a hole": Kind(
        Stage.LOG,
        "The entries of a log have consecutive offsets (positions). Here some are missing in the middle, so the node "
        "cannot know what it should have applied there.",
    ),
    "snapshot differs from its prefix": Kind(
        Stage.LOG,
        "A snapshot replaces the beginning of a log and must stand for exactly the same writes. This one stands for "
        "others, so a node that starts from it holds wrong data.",
    ),
    "snapshot beyond the high watermark": Kind(
        Stage.LOG,
        "A snapshot may contain committed writes only, because it cannot be undone. This one contains writes that were "
        "not yet committed and may still be replaced.",
    ),
    "log begins behind its snapshot": Kind(
        Stage.LOG,
        "A log must go on where its snapshot ends. Here entries between the two are missing: the node has lost them.",
    ),
    "high watermark without a majority": Kind(
        Stage.COMMIT,
        "A write is committed, that is promised to be kept, only when a majority of the nodes have it on disk. Here a "
        "node called writes committed that too few nodes held, so the loss of one node can lose them.",
    ),
    "acknowledged before it was committed": Kind(
        Stage.COMMIT,
        "A leader may acknowledge a write only when it is committed, that is when a majority of the nodes hold it. "
        "Here the client got its answer before, so the write could still have been lost.",
    ),
    "read of an uncommitted value": Kind(
        Stage.COMMIT,
        "A read may return only what is committed, because the rest can still disappear. Here a client read a value "
        "before it was committed.",
    ),
    "high watermark went back": Kind(
        Stage.COMMIT,
        "The high watermark marks up to where the log is committed, and it never falls while a node runs. Here it "
        "fell, so the node took back a promise.",
    ),
    "committed entry lost": Kind(
        Stage.LOSS,
        "What was once committed must stay in the logs for ever. Here an entry that a node had called committed is "
        "missing from, or replaced in, a log that should hold it.",
    ),
    "committed prefixes differ": Kind(
        Stage.LOSS,
        "All nodes must agree on everything that is committed. Here two nodes committed different entries at the same "
        "place, so clients of one see other data than clients of the other.",
    ),
    "truncation below the high watermark": Kind(
        Stage.LOSS,
        "A node may cut away the uncommitted end of its log, and nothing else. Here it cut away, or was ordered to cut "
        "away, entries that were already committed.",
    ),
    "acknowledged write missing from a log": Kind(
        Stage.LOSS,
        "A client got the answer that its write succeeded, so every complete log must hold that write. This log is "
        "complete and does not hold it: an acknowledged write is lost.",
    ),
    "failed write in a log": Kind(
        Stage.LOSS,
        "A client got the answer that its write certainly did not happen. The write stands in a log all the same, so "
        "the client has drawn a wrong conclusion.",
    ),
    "write in a log twice": Kind(
        Stage.LOSS,
        "Each write of a client may take effect once. This one stands in a log twice, so it can overwrite what was "
        "written between the two.",
    ),
    "log order against real time": Kind(
        Stage.LOSS,
        "A write that was acknowledged before another began must stand before it in the log. Here the order is the "
        "reverse, so the older value can win.",
    ),
    "applied states differ": Kind(
        Stage.STATE,
        "Nodes that have applied the same number of entries must hold the same data. Here two nodes did and hold "
        "different data.",
    ),
    "applied beyond the high watermark": Kind(
        Stage.STATE,
        "A node may show its clients only what is committed. Here it applied entries that were not committed and may "
        "still disappear.",
    ),
    "applied offset went back": Kind(
        Stage.STATE,
        "A node applies the entries of its log once and in order. Here it went back and applied some of them again.",
    ),
}

_STEPS: dict[str, Kind] = {
    "vote for a stranger": Kind(
        Stage.VOTE,
        "Votes may go to members of the group of voters only. This node voted for one that is no member.",
    ),
    "vote out of turn": Kind(
        Stage.VOTE,
        "A node may vote only in its own epoch and while it knows no leader there. This node voted at another"
        " moment, so it may help to elect a second leader.",
    ),
    "vote for a log that is behind": Kind(
        Stage.VOTE,
        "A node may vote only for a candidate whose log is at least as complete as its own. This candidate's "
        "log was behind, so committed entries can be lost if it wins.",
    ),
    "candidate without its own vote": Kind(
        Stage.VOTE,
        "A candidate votes for itself first, which counts towards its majority. This one had not.",
    ),
    "impossible change of role": Kind(
        Stage.LEADER,
        "A node moves between the roles of follower, candidate and leader by fixed rules. This change is not "
        "among them, so the node acted in a role that it did not have.",
    ),
    "more recovered than written": Kind(
        Stage.LOG,
        "After a restart a node may find what it wrote before, and no more. This node found entries that it "
        "never wrote.",
    ),
    "flushed entries lost": Kind(
        Stage.LOG,
        "What a node has flushed to disk must be there after a restart. This node lost some of it, although "
        "it had already counted as safe.",
    ),
    "append out of turn": Kind(
        Stage.LOG,
        "Only a leader, and followers that copy from it, add entries to their logs. This node was neither "
        "when it added some.",
    ),
    "append to another log than the leader's": Kind(
        Stage.LOG,
        "A follower may add the leader's entries only where its own log is equal to the leader's so far. This"
        " one was not, so the two logs now differ below what they share.",
    ),
    "entry of another epoch": Kind(
        Stage.LOG,
        "A follower holds the entries that its leader holds, with the same epochs. This entry has another epoch.",
    ),
    "truncation out of turn": Kind(
        Stage.LOG,
        "Only a follower may cut the end of its log, to become equal to its leader's. This node was no follower.",
    ),
    "truncation of what the leader holds": Kind(
        Stage.LOG,
        "A follower may cut away only what differs from its leader's log. This one cut away entries that the "
        "leader holds as well.",
    ),
    "prefix hash contradicts the log": Kind(
        Stage.LOG,
        "A node records a hash of everything in its log up to each entry. This hash does not belong to the "
        "entries that the log must hold there.",
    ),
    "mark out of turn": Kind(
        Stage.COMMIT,
        "Only a leader and its followers may advance the mark of what is committed. This node was neither.",
    ),
    "mark beyond the log": Kind(
        Stage.COMMIT,
        "A node may call committed only what it has safely in its own log. This mark lies beyond that.",
    ),
    "mark without an entry of its epoch": Kind(
        Stage.COMMIT,
        "A new leader may commit older entries only together with one of its own, because older ones can "
        "still be replaced. This leader did it without (figure 8 of the Raft paper).",
    ),
    "mark over another log than the leader's": Kind(
        Stage.COMMIT,
        "What a node calls committed must be the leader's log or its beginning. Here the node's log differs "
        "from the leader's below the mark.",
    ),
    "applied out of order": Kind(
        Stage.STATE,
        "A node applies committed entries once and in order. Here it applied some that were not next, or not "
        "committed.",
    ),
    "batch skipped or split": Kind(
        Stage.STATE,
        "Every node applies the same batches of entries, one after another. Here a node left one out or "
        "applied a part of it.",
    ),
    "row contradicts the rows before it": Kind(
        Stage.STEP,
        "A node's record of itself must be a possible sequence of steps. This step does not follow from the "
        "ones before it.",
    ),
}
"""Steps that the rules of the consensus protocol do not allow, each of one node, seen in its own record."""

_PROCESSES: dict[str, Kind] = {
    "node died": Kind(
        Stage.PROCESS,
        "A node's process must run until the harness stops it, in spite of every fault. This process ended by itself; "
        "often it noticed that an earlier promise was broken and refused to go on.",
    ),
    "not recovered": Kind(
        Stage.PROCESS,
        "When every fault is over the system must come back by itself. Here it still did not serve its clients after "
        "the time limit.",
    ),
}

_OBJECTS: dict[str, Kind] = {
    "stale read": Kind(
        Stage.ANSWER,
        "A read must return the latest value whose write was acknowledged before the read began. This read returned an "
        "older value that had already been replaced.",
    ),
    "lost write": Kind(
        Stage.ANSWER,
        "A write that was acknowledged must be visible until another write replaces it. No client ever saw this one, "
        "and the older value came back.",
    ),
    "value from nowhere": Kind(
        Stage.ANSWER,
        "An answer can only contain what some client wrote. This answer contains a value that no successful write can "
        "have produced.",
    ),
    "order cycle": Kind(
        Stage.ANSWER,
        "All answers must fit one order of the operations in which each takes effect between its call and its answer. "
        "Here every such order contradicts at least one answer.",
    ),
    "no order": Kind(
        Stage.ANSWER,
        "All answers must fit one order of the operations in which each takes effect between its call and its answer. "
        "A search tried every order of these operations, and none fits.",
    ),
    "impossible sum": Kind(
        Stage.ANSWER,
        "A counter must return the sum of the changes that were made before. No choice of the changes that were "
        "possible at that moment gives this sum.",
    ),
    "held twice": Kind(
        Stage.ANSWER,
        "A lock belongs to one client at a time. Here two clients held it at the same moment, so both could change "
        "what it protects.",
    ),
    "two values at one offset": Kind(
        Stage.ANSWER,
        "Each position of a log holds one value for ever. Here two clients saw two values at the same position.",
    ),
    "duplicate": Kind(
        Stage.ANSWER,
        "What was added once may come out once. Here the same element was delivered, handed out or stored twice.",
    ),
    "acknowledged element lost": Kind(
        Stage.ANSWER,
        "What was added and acknowledged must be found later. This element was acknowledged, and no later answer "
        "contains it.",
    ),
    "token handed out twice": Kind(
        Stage.ANSWER,
        "Every holder of a lock must get a fencing token of its own. Here two processes got the same token.",
    ),
    "tokens out of order": Kind(
        Stage.ANSWER,
        "Each fencing token must be greater than all tokens before it. Here a later holder got a smaller token.",
    ),
    "stale token accepted": Kind(
        Stage.ANSWER,
        "What a lock guards must refuse the token of an earlier holder. Here it took one after a newer token.",
    ),
    "wrong total": Kind(
        Stage.ANSWER,
        "Transfers move money and never make or destroy any. Here the balances of one read add up to another total.",
    ),
    "negative balance": Kind(
        Stage.ANSWER,
        "A transfer that would overdraw an account must be refused. Here an account held less than nothing.",
    ),
    "other accounts": Kind(
        Stage.ANSWER,
        "Every read must show every account of the bank. Here a read showed other accounts than all other reads.",
    ),
    "long fork": Kind(
        Stage.ANSWER,
        "All readers must see two independent writes in one order. Here two reads saw them in opposite orders.",
    ),
    "out of order": Kind(
        Stage.ANSWER,
        "A queue must return its elements in the order in which they were added. Here a later element came out first.",
    ),
    "not empty": Kind(
        Stage.ANSWER,
        "A queue may answer that it is empty only while it is. Here it held at least one element all the time.",
    ),
}

_TRANSACTIONS: dict[str, Kind] = {
    "unwritten-read": Kind(
        Stage.ANSWER,
        "A transaction can only read what some transaction wrote. This one read a value that nothing wrote.",
        "value from nowhere",
    ),
    "duplicate-elements": Kind(
        Stage.ANSWER,
        "Each element was appended to the list once. A transaction read the same element twice in one list.",
        "append applied twice",
    ),
    "cyclic-versions": Kind(
        Stage.ANSWER,
        "The values of a key must have one order in which they replaced each other. Here each value must be both "
        "before and after another.",
        "no order of versions",
    ),
    "incompatible-order": Kind(
        Stage.ANSWER,
        "Every reader must see the elements of a list in the same order. Two transactions read them in different "
        "orders, so the list has split.",
        "diverged lists",
    ),
    "reordered-appends": Kind(
        Stage.ANSWER,
        "The appends of one transaction must stand in the list in the order in which the transaction made them. Here "
        "their order is different.",
        "appends out of order",
    ),
    "G1a": Kind(
        Stage.ANSWER,
        "What a failed transaction wrote must never be visible. Here a transaction read it.",
        "aborted read",
    ),
    "dirty-update": Kind(
        Stage.ANSWER,
        "No transaction may build upon what a failed transaction wrote. Here one did, and its result was committed.",
        "dirty update",
    ),
    "G1b": Kind(
        Stage.ANSWER,
        "Only the last value that a transaction writes to a key may become visible. Here a transaction read a value in "
        "between.",
        "intermediate read",
    ),
    "future-read": Kind(
        Stage.ANSWER,
        "A transaction cannot see what it writes only later. This one did.",
        "read of its own future",
    ),
    "internal": Kind(
        Stage.ANSWER,
        "Within one transaction a read must agree with what the transaction itself read and wrote before. Here the "
        "value changed under it.",
        "unrepeatable read inside one transaction",
    ),
    "lost-update": Kind(
        Stage.ANSWER,
        "Two transactions read the same version of a key and then both wrote it. One of the two updates ignores the "
        "other and is lost.",
        "lost update",
    ),
    "G0": Kind(
        Stage.ANSWER,
        "The writes of two transactions must not overlap: one comes first on every key. Here each overwrote the other "
        "on some key.",
        "dirty write",
    ),
    "G0-process": Kind(
        Stage.ANSWER,
        "Transactions of one client must take effect in the order in which the client ran them. Here a write that came "
        "later stands before an earlier one.",
        "writes out of session order",
    ),
    "G0-realtime": Kind(
        Stage.ANSWER,
        "A write that was acknowledged before another began must come first. Here the order of the writes contradicts "
        "that, as if the acknowledged one had disappeared and come back later, or never.",
        "acknowledged append lost",
    ),
    "G1c": Kind(
        Stage.ANSWER,
        "Information may flow from one transaction to another, but not back. Here each of them saw what another wrote, "
        "in a circle.",
        "circular information flow",
    ),
    "G1c-process": Kind(
        Stage.ANSWER,
        "A client must not see the effects of something that it does only later. Here the order in which one client "
        "ran its transactions closes a circle of what each of them saw.",
        "reads out of session order",
    ),
    "G1c-realtime": Kind(
        Stage.ANSWER,
        "A transaction must not see what began only after its answer. Here real time closes a circle of what the "
        "transactions saw.",
        "read against real time",
    ),
    "G-single": Kind(
        Stage.ANSWER,
        "A transaction must see all of another transaction's effects or none. This one saw some of them and missed "
        "others.",
        "read skew",
    ),
    "G-single-process": Kind(
        Stage.ANSWER,
        "A client must see the effects of its own earlier transactions. Here a later transaction of the same client "
        "missed one of them.",
        "stale read in one session",
    ),
    "G-single-realtime": Kind(
        Stage.ANSWER,
        "A transaction must see everything that was acknowledged before it began. This one missed such a write.",
        "stale read",
    ),
    "G-nonadjacent": Kind(
        Stage.ANSWER,
        "All readers must see independent writes happen in one order. Here two readers saw two writes in opposite "
        "orders.",
        "long fork",
    ),
    "G-nonadjacent-process": Kind(
        Stage.ANSWER,
        "All readers must see independent writes happen in one order, which agrees with the order within each client. "
        "Here no such order exists.",
        "long fork in one session",
    ),
    "G-nonadjacent-realtime": Kind(
        Stage.ANSWER,
        "All readers must see independent writes happen in one order, which agrees with real time. Here no such order "
        "exists.",
        "long fork against real time",
    ),
    "G2-item": Kind(
        Stage.ANSWER,
        "The result must be the same as if the transactions had run one after another. Here each read what another "
        "overwrote, so neither can come first.",
        "write skew",
    ),
    "G2-item-process": Kind(
        Stage.ANSWER,
        "The result must be the same as if the transactions had run one after another, each client's in its own order. "
        "Here no such order exists.",
        "write skew in one session",
    ),
    "G2-item-realtime": Kind(
        Stage.ANSWER,
        "The result must be the same as if the transactions had run one after another in real time. Here no such order "
        "exists.",
        "write skew against real time",
    ),
}

_MESSAGES: dict[str, Kind] = {
    "unsent-read": Kind(
        Stage.ANSWER,
        "A consumer can only receive what some producer sent. Here it received something else.",
        "message from nowhere",
    ),
    "lost-write": Kind(
        Stage.ANSWER,
        "A message whose sending was acknowledged must reach every consumer that reads past it. Here consumers read "
        "later messages and never this one.",
        "lost message",
    ),
    "inconsistent-offsets": Kind(
        Stage.ANSWER,
        "Each position of a log holds one message for ever. Here two different messages were seen at one position.",
        "two messages at one offset",
    ),
    "precommitted-read": Kind(
        Stage.ANSWER,
        "A transaction's messages become visible only when it has committed. Here they were read before.",
        "read before commit",
    ),
    "int-poll-skip": Kind(
        Stage.ANSWER,
        "One poll must return consecutive messages. Here a message in the middle was left out.",
        "message skipped in one transaction",
    ),
    "int-nonmonotonic-poll": Kind(
        Stage.ANSWER,
        "One poll must return messages in the order of the log. Here their order went back.",
        "messages out of order in one transaction",
    ),
    "poll-skip": Kind(
        Stage.ANSWER,
        "A consumer must go on where it stopped. Here its next poll left messages out.",
        "messages skipped",
    ),
    "nonmonotonic-poll": Kind(
        Stage.ANSWER,
        "A consumer must go on where it stopped. Here its next poll went back to older messages.",
        "messages out of order",
    ),
    "nonmonotonic-send": Kind(
        Stage.ANSWER,
        "What a producer sends later must stand later in the log. Here its messages stand in the wrong order.",
        "messages stored out of order",
    ),
    "unseen": Kind(
        Stage.ANSWER,
        "At the end every acknowledged message should have been received. No consumer ever received this one.",
        "message never delivered",
    ),
    "int-nonmonotonic-send": Kind(
        Stage.ANSWER,
        "The messages of one transaction must stand in the log in the order of sending. Here they stand in another "
        "order.",
        "messages stored out of order in one transaction",
    ),
    "int-send-skip": Kind(
        Stage.ANSWER,
        "The messages of one transaction were expected to stand side by side. Here others stand between them.",
        "messages of one transaction apart",
    ),
}

KINDS: Mapping[str, Kind] = {**_RAFT, **_STEPS, **_PROCESSES, **_OBJECTS, **_TRANSACTIONS, **_MESSAGES}
"""Kind of a witness (`checkers.base.verdict.Witness.kind`) -> what it means."""


def kind_of(name: str) -> Kind:
    """The entry of a kind; of a kind that is not in the table an empty explanation at the stage of answers."""
    return KINDS.get(name, _UNKNOWN)


def name_in_words(name: str) -> str:
    """The kind as a reader knows it, with the name of the theory behind it: `long fork (G-nonadjacent)`."""
    known_as = kind_of(name).known_as
    if known_as and known_as != name.replace("-", " "):
        return f"{known_as} ({name})"
    return known_as or name
