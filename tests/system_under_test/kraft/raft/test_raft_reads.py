"""When a read is proved: the counter, the connections, the majority."""

from system_under_test.kraft.raft.reads import Reads

FIRST, SECOND = 2, 3  # voters; the leader is 1
WIRE, OTHER_WIRE = 20, 30  # their connections


def test_a_fetch_after_an_answer_after_the_read_proves_it():
    reads = Reads([FIRST, SECOND])
    reads.fetched(FIRST, WIRE)
    reads.note(token=1, mark=7)
    reads.answered(WIRE)
    assert reads.take_proved() == [], "an answer alone proves nothing"
    reads.fetched(FIRST, WIRE)
    assert reads.take_proved() == [(1, 7)]
    assert reads.take_proved() == [], "a read is answered once"


def test_a_fetch_sent_before_the_read_proves_nothing_however_late_it_arrives():
    reads = Reads([FIRST, SECOND])
    reads.answered(WIRE)
    reads.note(token=1, mark=7)
    reads.fetched(FIRST, WIRE)  # on its way since before the read
    assert reads.take_proved() == []


def test_the_first_fetch_of_a_connection_proves_nothing():
    reads = Reads([FIRST, SECOND])
    reads.note(token=1, mark=7)
    reads.fetched(FIRST, WIRE)
    assert reads.take_proved() == []


def test_a_broken_connection_proves_nothing_any_more():
    reads = Reads([FIRST, SECOND])
    reads.note(token=1, mark=7)
    reads.answered(WIRE)
    reads.forget(WIRE)
    reads.fetched(FIRST, WIRE)
    assert reads.take_proved() == []


def test_the_proof_needs_a_majority():
    reads = Reads([2, 3, 4, 5])
    reads.note(token=1, mark=7)
    for voter in (2, 3, 4, 5):
        reads.answered(voter * 10)
    reads.fetched(2, 20)
    reads.fetched(2, 20)
    assert reads.take_proved() == [], "one voter twice is one voter"
    reads.fetched(3, 30)
    assert reads.take_proved() == [(1, 7)]


def test_waiting_reads_share_a_round():
    reads = Reads([FIRST, SECOND])
    reads.note(token=1, mark=7)
    reads.note(token=2, mark=8)
    reads.answered(WIRE)
    reads.note(token=3, mark=9)
    reads.fetched(FIRST, WIRE)
    assert reads.take_proved() == [(1, 7), (2, 8)]
    assert reads.needs(FIRST)
    reads.answered(WIRE)
    reads.fetched(FIRST, WIRE)
    assert reads.take_proved() == [(3, 9)]
    assert not reads.needs(FIRST)


def test_a_voter_that_proved_all_gets_no_further_request():
    reads = Reads([2, 3, 4, 5])
    assert not reads.needs(2), "no reads, no hurry"
    reads.note(token=1, mark=7)
    assert reads.needs(2)
    reads.answered(20)
    reads.fetched(2, 20)
    assert not reads.needs(2)
    assert reads.needs(3)
    assert not reads.needs(99), "an observer proves nothing"


def test_a_sole_voter_is_its_own_majority():
    reads = Reads([])
    reads.note(token=1, mark=7)
    assert reads.take_proved() == [(1, 7)]


def test_a_waiting_read_can_be_refused():
    reads = Reads([FIRST, SECOND])
    reads.note(token=1, mark=7)
    reads.hold(2)
    assert list(reads.unanswered()) == [1, 2]
    assert reads.take_held() == [2]
    assert reads.take_held() == []
