"""Derives Kafka's logs from columns of operations, and finds every anomaly in them that is not a cycle.

A *message* is a value of a key; messages of all keys share one numbering.  An operation happened if it committed.  It
also happened if its outcome is unknown and one of its messages was polled.  A message is certainly in a log if any poll
returned it, or if an operation that happened got an offset for it.  Polls of operations that failed or never ended
count here, too, because the broker had served these messages.  Such polls prove nothing about the order in which a
consumer reads.  So only polls of committed operations are compared with each other, and only these must not return
aborted messages.

Offsets have gaps (markers of transactions, aborted messages).  So neighbours are defined by *places*.  A place is an
offset that certainly contains exactly one message, and no other offset contains this message.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from checkers.base.arrays import Bools, Int8, Int32, Int64
from checkers.base.history import Type
from checkers.kernels.jit import inner_kernel, kernel

OK, FAIL, INFO = int(Type.OK), int(Type.FAIL), int(Type.INFO)

SEND, POLL, TXN, ASSIGN, SUBSCRIBE = 0, 1, 2, 3, 4
"""`f` of an operation."""

UNKNOWN_OFFSET = -1


class KafkaColumns(NamedTuple):
    """Operations in order of invocation, and their rows of four kinds; the rows of operation o begin at first[o].

    process: int32, from 0
    f, status: int8
    sent: message and offset of each send, in order; int64 offset, UNKNOWN_OFFSET if no answer contained it
    polled: message and offset of each message that operations of any status polled
    assigned, rebalanced: keys
    key_of: key of each message
    invoked, completed: int64, positions in the history; completed is past all positions if the outcome is unknown
    """

    process: Int32
    f: Int8
    status: Int8
    send_first: Int64
    sent: Int32
    sent_offset: Int64
    poll_first: Int64
    polled: Int32
    polled_offset: Int64
    assign_first: Int64
    assigned: Int32
    rebalance_first: Int64
    rebalanced: Int32
    key_of: Int32
    invoked: Int64
    completed: Int64


class Logs(NamedTuple):
    """The logs that result from all operations together.

    writer: int32 per message, the operation that sent it, or -1
    reader: int32 per message, the first committed operation that polled it; if there is none, the first operation of
        any status that polled it; or -1
    happened: per operation
    slot: int64 per message, the slot of its offset; -1 if no offset is known, SEVERAL if it has more than one
    holds: int32 per slot, the message at this offset, -1, or SEVERAL
    next_polled: int64 per slot, the slot of the key's next higher offset with a message that a committed operation
        polled, or -1
    place: int32 per message, its place, or -1
    at_place: the messages by place; places of one key are consecutive
    """

    writer: Int32
    reader: Int32
    happened: Bools
    slot: Int64
    holds: Int32
    next_polled: Int64
    place: Int32
    at_place: Int32


SEVERAL = -2

# Kind                   sample (operations, messages)
UNSENT_READ = 0  # message
ABORTED_READ = 1  # message
LOST_WRITE = 2  # operation, message, slot of a polled message with a higher offset
INCONSISTENT_OFFSETS = 3  # slot
DUPLICATE = 4  # message
PRECOMMITTED_READ = 5  # operation, message
INT_POLL_SKIP = 6  # operation, message, next message; the three kinds below have the same sample
INT_NONMONOTONIC_POLL = 7
# operation, message, next message, operation of the next message; the two kinds below have the same sample
POLL_SKIP = 8
NONMONOTONIC_POLL = 9
NONMONOTONIC_SEND = 10
UNSEEN = 11  # operation, message
INT_NONMONOTONIC_SEND = 12
INT_SEND_SKIP = 13
EXCUSED_POLL_SKIP = 14  # the consumer's group may have moved its partitions between the polls
EXCUSED_NONMONOTONIC_POLL = 15
KINDS = 16


class Found(NamedTuple):
    """Anomalies by kind: the number of each kind, and its first anomaly as four numbers (see the kinds)."""

    times: Int64
    sample: Int64


@inner_kernel
def _note(found: Found, kind: int, a: int, b: int, c: int, d: int) -> None:
    if found.times[kind] == 0:
        found.sample[kind, 0], found.sample[kind, 1] = a, b
        found.sample[kind, 2], found.sample[kind, 3] = c, d
    found.times[kind] += 1


@kernel
def read_logs(columns: KafkaColumns, slot_of_sent: Int64, slot_of_polled: Int64, slot_key: Int32) -> Logs:
    """Derive the logs from all operations.

    slot_of_sent, slot_of_polled: per row, the slot of its (key, offset), or -1; slots are in order of keys and offsets
    slot_key: key of each slot
    """
    messages, slots = columns.key_of.shape[0], slot_key.shape[0]
    writer, reader = np.full(messages, -1, np.int32), np.full(messages, -1, np.int32)
    slot, holds = np.full(messages, -1, np.int64), np.full(slots, -1, np.int32)
    happened = columns.status == OK
    polled_at = np.zeros(slots, np.bool_)
    for o in range(columns.status.shape[0]):
        for row in range(columns.send_first[o], columns.send_first[o + 1]):
            if writer[columns.sent[row]] < 0:
                writer[columns.sent[row]] = o
        for row in range(columns.poll_first[o], columns.poll_first[o + 1]):
            message = columns.polled[row]
            if reader[message] < 0 or (columns.status[o] == OK and columns.status[reader[message]] != OK):
                reader[message] = o
            _place(message, slot_of_polled[row], slot, holds)
            if slot_of_polled[row] >= 0 and columns.status[o] == OK:
                polled_at[slot_of_polled[row]] = True
    for o in range(columns.status.shape[0]):
        for row in range(columns.send_first[o], columns.send_first[o + 1]):
            if columns.status[o] == INFO and reader[columns.sent[row]] >= 0:
                happened[o] = True
        for row in range(columns.send_first[o], columns.send_first[o + 1] if happened[o] else 0):
            _place(columns.sent[row], slot_of_sent[row], slot, holds)
            seen_by = reader[columns.sent[row]]
            if slot_of_sent[row] >= 0 and seen_by >= 0 and columns.status[seen_by] == OK:
                polled_at[slot_of_sent[row]] = True
    next_polled = np.full(slots, -1, np.int64)
    for s in range(slots - 2, -1, -1):
        if slot_key[s] == slot_key[s + 1]:
            next_polled[s] = s + 1 if polled_at[s + 1] else next_polled[s + 1]
    place, at_place = np.full(messages, -1, np.int32), np.empty(messages, np.int32)
    places = 0
    for s in range(slots):
        if holds[s] >= 0 and slot[holds[s]] == s:
            place[holds[s]] = places
            at_place[places] = holds[s]
            places += 1
    return Logs(writer, reader, happened, slot, holds, next_polled, place, at_place[:places])


@inner_kernel
def _place(message: int, at: int, slot: Int64, holds: Int32) -> None:
    if at < 0:
        return
    if slot[message] == -1:
        slot[message] = at
    elif slot[message] != at:
        slot[message] = SEVERAL
    if holds[at] == -1:
        holds[at] = message
    elif holds[at] != message:
        holds[at] = SEVERAL


@kernel
def find_anomalies(columns: KafkaColumns, logs: Logs, slot_of_sent: Int64, key_count: int, process_count: int) -> Found:
    """Find every anomaly other than cycles.

    slot_of_sent: as in `read_logs`
    process_count: number of processes
    """
    found = Found(np.zeros(KINDS, np.int64), np.full((KINDS, 4), -1, np.int64))
    for message in range(columns.key_of.shape[0]):
        if logs.reader[message] >= 0 and logs.writer[message] < 0:
            _note(found, UNSENT_READ, message, -1, -1, -1)
        committed = logs.reader[message] >= 0 and columns.status[logs.reader[message]] == OK
        if committed and logs.writer[message] >= 0 and columns.status[logs.writer[message]] == FAIL:
            _note(found, ABORTED_READ, message, -1, -1, -1)
        if logs.slot[message] == SEVERAL:
            _note(found, DUPLICATE, message, -1, -1, -1)
    for slot in range(logs.holds.shape[0]):
        if logs.holds[slot] == SEVERAL:
            _note(found, INCONSISTENT_OFFSETS, slot, -1, -1, -1)
    _find_unpolled(columns, logs, slot_of_sent, key_count, found)
    _find_inside(columns, logs, key_count, found)
    _find_sent_behind(columns, logs, key_count, found)
    _find_between(columns, logs, key_count, process_count, found)
    return found


@kernel
def _find_unpolled(columns: KafkaColumns, logs: Logs, slot_of_sent: Int64, key_count: int, found: Found) -> None:
    """Find messages that were never polled: lost-write if a later message was polled, else unseen.

    A transaction is atomic: once any of its messages was polled, all of them are in their logs.  A message with an
    unknown offset precedes every message that was sent after the operation had certainly happened.
    """
    seen_at = _seen_at(columns, logs)
    last_polled = np.full(key_count, -1, np.int32)  # per key: of the polled messages, the one that was sent last
    for message in range(columns.key_of.shape[0]):
        key, reader, writer = columns.key_of[message], logs.reader[message], logs.writer[message]
        polled = reader >= 0 and columns.status[reader] == OK and writer >= 0 and logs.slot[message] >= 0
        if polled and (last_polled[key] < 0 or logs.writer[last_polled[key]] < writer):
            last_polled[key] = message
    for o in range(columns.status.shape[0]):
        if not logs.happened[o]:
            continue
        for row in range(columns.send_first[o], columns.send_first[o + 1]):
            message, slot = columns.sent[row], slot_of_sent[row]
            if logs.reader[message] >= 0:
                continue
            later = last_polled[columns.key_of[message]]
            sure = columns.status[o] == OK or columns.f[o] == TXN
            if slot >= 0 and logs.next_polled[slot] >= 0:
                _note(found, LOST_WRITE, o, message, logs.next_polled[slot], -1)
            elif slot < 0 and sure and later >= 0 and columns.invoked[logs.writer[later]] > seen_at[o]:
                _note(found, LOST_WRITE, o, message, logs.slot[later], -1)
            elif sure:
                _note(found, UNSEEN, o, message, -1, -1)


@kernel
def _seen_at(columns: KafkaColumns, logs: Logs) -> Int64:
    """Return, per operation, the position in the history at which it had certainly happened."""
    seen_at = columns.completed.copy()
    for o in range(columns.status.shape[0]):
        if columns.status[o] == INFO:
            seen_at[o] = np.int64(2**62)
    for o in range(columns.status.shape[0]):
        for row in range(columns.poll_first[o], columns.poll_first[o + 1] if columns.status[o] != INFO else 0):
            writer = logs.writer[columns.polled[row]]
            if writer >= 0 and columns.status[writer] == INFO:
                seen_at[writer] = min(seen_at[writer], columns.completed[o])
    return seen_at


@kernel
def _find_sent_behind(columns: KafkaColumns, logs: Logs, key_count: int, found: Found) -> None:
    """Find messages with a lower offset than a message that was sent or polled before they were sent.

    A log grows at its end, so a later message has a larger offset, regardless of its sender and of transactions.
    """
    by_completion = np.argsort(columns.completed)
    highest = np.full(key_count, -1, np.int32)  # per key: message with the largest offset polled so far
    shown_by = np.full(key_count, -1, np.int64)
    at = 0
    for o in range(columns.status.shape[0]):
        while at < len(by_completion) and columns.completed[by_completion[at]] < columns.invoked[o]:
            done = by_completion[at]
            at += 1
            if columns.status[done] != OK:
                continue
            for row in range(columns.send_first[done], columns.send_first[done + 1]):
                _shown(columns.sent[row], done, columns.key_of, logs.place, highest, shown_by)
            for row in range(columns.poll_first[done], columns.poll_first[done + 1]):
                _shown(columns.polled[row], done, columns.key_of, logs.place, highest, shown_by)
        for row in range(columns.send_first[o], columns.send_first[o + 1] if logs.happened[o] else 0):
            message = columns.sent[row]
            before = highest[columns.key_of[message]]
            if before >= 0 and 0 <= logs.place[message] < logs.place[before]:
                _note(found, NONMONOTONIC_SEND, shown_by[columns.key_of[message]], before, message, o)


@inner_kernel
def _shown(message: int, o: int, key_of: Int32, place: Int32, highest: Int32, shown_by: Int64) -> None:
    key = key_of[message]
    if place[message] >= 0 and (highest[key] < 0 or place[highest[key]] < place[message]):
        highest[key], shown_by[key] = message, o


@kernel
def _find_inside(columns: KafkaColumns, logs: Logs, key_count: int, found: Found) -> None:
    """Compare consecutive messages of the same operation."""
    owner = np.full(key_count, -1, np.int64)  # operation of `last`
    last = np.full(key_count, -1, np.int64)
    excused = np.full(key_count, -1, np.int64)  # per key: operation during which the key was rebalanced
    early = np.full(key_count, -1, np.int64)  # per key: operation whose precommitted read was counted
    for o in range(columns.status.shape[0]):
        for row in range(columns.rebalance_first[o], columns.rebalance_first[o + 1]):
            excused[columns.rebalanced[row]] = o
        for row in range(columns.poll_first[o], columns.poll_first[o + 1] if columns.status[o] == OK else 0):
            message = columns.polled[row]
            key = columns.key_of[message]
            if logs.writer[message] == o and early[key] != o:
                early[key] = o
                _note(found, PRECOMMITTED_READ, o, message, -1, -1)
            if owner[key] == o and excused[key] != o:
                _step(logs, found, INT_POLL_SKIP, INT_NONMONOTONIC_POLL, o, last[key], message, -1)
            owner[key], last[key] = o, message
    owner[:] = -1
    for o in range(columns.status.shape[0]):
        if columns.status[o] != OK:
            continue
        for row in range(columns.send_first[o], columns.send_first[o + 1]):
            message = columns.sent[row]
            key = columns.key_of[message]
            if owner[key] == o:
                _step(logs, found, INT_SEND_SKIP, INT_NONMONOTONIC_SEND, o, last[key], message, -1)
            owner[key], last[key] = o, message


@kernel
def _find_between(columns: KafkaColumns, logs: Logs, key_count: int, process_count: int, found: Found) -> None:
    """Compare, per key, the last message that a process polled with the first one that its next operation polled.

    A consumer that subscribed shares partitions with a group, which may move the partitions between two polls.  So does
    a consumer without a recorded assignment, if any consumer subscribed to the partition.  Such a move excuses messages
    that a consumer skips or repeats.  If a consumer's operations record rebalances, only a recorded rebalance excuses.

    A failed poll may have moved the consumer, so polls before and after it are not compared.  The same holds for an
    assignment that drops the key, and for a rebalance.  An entry of a process and key is valid while its `term` equals
    that of the process.
    """
    room = 1024
    while room < 2 * columns.polled.shape[0]:
        room *= 2
    pairs = np.full(room, -1, np.int64)
    term = np.zeros(room, np.int64)
    known_by, known = np.full(room, -1, np.int64), np.empty(room, np.int64)
    term_of = np.ones(process_count, np.int64)
    subscribed, records = np.ones(process_count, np.bool_), np.zeros(process_count, np.bool_)
    shared = np.zeros(key_count, np.bool_)
    for o in range(columns.status.shape[0]):
        if columns.rebalance_first[o] < columns.rebalance_first[o + 1]:
            records[columns.process[o]] = True
        for row in range(columns.assign_first[o], columns.assign_first[o + 1] if columns.f[o] == SUBSCRIBE else 0):
            shared[columns.assigned[row]] = True
    for o in range(columns.status.shape[0]):
        process, ok = np.int64(columns.process[o]), columns.status[o] == OK
        if columns.f[o] >= ASSIGN:
            subscribed[process] = columns.f[o] == SUBSCRIBE or (subscribed[process] and not ok)
            term_of[process] += 1
            for row in range(columns.assign_first[o], columns.assign_first[o + 1] if ok else 0):
                at = _entry(pairs, process * key_count + columns.assigned[row])
                if pairs[at] >= 0 and term[at] == term_of[process] - 1:
                    term[at] += 1
            continue
        if not ok:
            term_of[process] += columns.f[o] != SEND
            continue
        for row in range(columns.rebalance_first[o], columns.rebalance_first[o + 1]):
            at = _entry(pairs, process * key_count + columns.rebalanced[row])
            if pairs[at] >= 0:
                term[at] = 0
        for row in range(columns.poll_first[o], columns.poll_first[o + 1]):
            message = columns.polled[row]
            at = _entry(pairs, process * key_count + columns.key_of[message])
            pairs[at] = process * key_count + columns.key_of[message]
            if term[at] == term_of[process] and known_by[at] != o:
                excused = subscribed[process] and shared[columns.key_of[message]] and not records[process]
                skip = EXCUSED_POLL_SKIP if excused else POLL_SKIP
                backwards = EXCUSED_NONMONOTONIC_POLL if excused else NONMONOTONIC_POLL
                _step(logs, found, skip, backwards, known_by[at], known[at], message, o)
            term[at], known_by[at], known[at] = term_of[process], o, message


@inner_kernel
def _entry(pairs: Int64, pair: int) -> int:
    """Return the slot of a pair (process, key) in the hash table, or the empty slot for it."""
    mask = len(pairs) - 1
    at = int((np.uint64(pair) * np.uint64(11400714819323198485)) >> np.uint64(20)) & mask
    while pairs[at] >= 0 and pairs[at] != pair:
        at = (at + 1) & mask
    return at


@inner_kernel
def _step(logs: Logs, found: Found, skip: int, backwards: int, o: int, a: int, b: int, next_o: int) -> None:
    """Compare messages a and b of one log: b should follow a immediately.  Unknown positions are not compared."""
    if a == b:
        _note(found, backwards, o, a, b, next_o)
    elif logs.place[a] >= 0 and logs.place[b] >= 0:
        if logs.place[b] < logs.place[a]:
            _note(found, backwards, o, a, b, next_o)
        elif logs.place[b] > logs.place[a] + 1:
            _note(found, skip, o, a, b, next_o)
