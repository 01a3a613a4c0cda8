"""Histories of other checkers: recognized, judged alike in every format, and refused in one sentence.

The tests write them as sessions.  A session is a list of transactions, each a text such as "w x 1, r y 0": one letter
names a key, and 0 is the initial state.  A transaction that begins with "!" was aborted.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from checkers.base.history import MalformedHistory, Type
from checkers.base.verdict import Validity
from checkers.formats.read_once import session_format
from checkers.formats.session_files import SIZE_FACTOR, SessionHistory, read_cobra_folder, read_session_history
from checkers.transactions.judge import judge_transcript
from checkers.transactions.read_sessions import transcript_of
from harness.cli.main import cli

Sessions = Sequence[Sequence[str]]

_NEVER_WRITTEN = 0xBEBEEBEE


def operations(transaction: str) -> list[tuple[str, int, int]]:
    """(r or w, key, value)."""
    parts = [each.split() for each in transaction.removeprefix("!").split(",")]
    return [(f, ord(key) - ord("a"), int(value)) for f, key, value in parts]


def numbered(sessions: Sessions) -> Iterator[tuple[int, int, str]]:
    """(session, number of the transaction, transaction)."""
    number = 0
    for session, transactions in enumerate(sessions):
        for transaction in transactions:
            number += 1
            yield session, number, transaction


def dbcop(sessions: Sessions) -> bytes:
    def text(words: str) -> bytes:
        return struct.pack("<Q", len(words)) + words.encode()

    out = struct.pack("<5Q", 0, len(sessions), 9, 9, 9) + text("ours")
    out += text("2026-01-01T00:00:00+00:00") * 2 + struct.pack("<Q", len(sessions))
    for transactions in sessions:
        out += struct.pack("<Q", len(transactions))
        for transaction in transactions:
            succeeded = not transaction.startswith("!")
            events = operations(transaction)
            out += struct.pack("<Q", len(events))
            for f, key, value in events:
                out += struct.pack("<?QQ?", f == "w", key, value, succeeded)
            out += struct.pack("<?", succeeded)
    return out


def plume(sessions: Sessions) -> bytes:
    lines = []
    for session, number, transaction in numbered(sessions):
        name = -1 if transaction.startswith("!") else number
        lines += [f"{f}({key},{value},{session},{name})\n" for f, key, value in operations(transaction)]
    return "".join(lines).encode()


def awdit(sessions: Sessions) -> bytes:
    """AWDIT's text has no aborted transactions, and its initial state is written by a transaction."""
    keys = sorted({key for _, _, transaction in numbered(sessions) for _, key, _ in operations(transaction)})
    initial = "".join(f"w {key} 0\n" for key in keys)
    texts = [
        "-----\n".join("".join(f"{f} {k} {v}\n" for f, k, v in operations(transaction)) for transaction in transactions)
        for transactions in sessions
    ]
    return "=====\n".join([initial, *texts]).encode()


def chronos(sessions: Sessions, stamps: dict[int, tuple[int, int]] | None = None) -> bytes:
    """stamps: number of a transaction -> its begin and end."""
    rows = []
    for session, number, transaction in numbered(sessions):
        begin, end = (stamps or {}).get(number, (2 * number, 2 * number + 1))
        ops = [{"t": f, "k": key, "v": value or None} for f, key, value in operations(transaction)]
        rows.append({"tid": number, "sid": session, "sts": {"p": begin, "l": 0}, "cts": {"p": end, "l": 0}, "ops": ops})
    return json.dumps(rows).encode()


def cobra(sessions: Sessions, folder: Path, *, stamped: bool = False) -> None:
    """Return a log for each session; a time stamp follows the ends of transactions if `stamped`."""
    logs: dict[int, bytes] = {}
    stamp = struct.pack(">q", 7) if stamped else b""
    for session, number, transaction in numbered(sessions):
        out = b"S" + struct.pack(">q", number) + stamp
        for f, key, value in operations(transaction):
            write_id = 1000 * (key + 1) + value if value else _NEVER_WRITTEN
            if f == "w":
                out += b"W" + struct.pack(">3q", write_id, key, value)
            else:
                out += b"R" + struct.pack(">4q", _NEVER_WRITTEN, write_id, key, value)
        out += (b"A" if transaction.startswith("!") else b"C") + struct.pack(">q", number) + stamp
        logs[session] = logs.get(session, b"") + out
    for session, content in logs.items():
        (folder / f"T{session}.log").write_bytes(content)


WRITERS = {"DBCop": dbcop, "Plume text": plume, "AWDIT text": awdit, "Chronos": chronos}
FORMATS = [*WRITERS, "Cobra", "Cobra with stamps"]

SERIALIZABLE: Sessions = [["w x 1, w y 1", "r y 2"], ["r x 1, w y 2"], ["r x 0, r y 0"]]
LONG_FORK: Sessions = [["w x 1"], ["w y 1"], ["r x 1, r y 0"], ["r x 0, r y 1"]]
WRITE_SKEW: Sessions = [["r x 0, r y 0, w x 1"], ["r x 0, r y 0, w y 1"]]
LOST_UPDATE: Sessions = [["r x 0, w x 1"], ["r x 0, w x 2"]]
STALE_SESSION: Sessions = [["w x 1", "r x 0"]]
FRACTURED: Sessions = [["w x 1, w y 1"], ["r x 1, r y 0"]]
CASES = {
    "serializable": (SERIALIZABLE, {"serializable": "valid", "strong-session-serializable": "valid"}),
    "long fork": (LONG_FORK, {"causal": "valid", "snapshot-isolation": "invalid", "serializable": "invalid"}),
    "write skew": (WRITE_SKEW, {"strong-session-snapshot-isolation": "valid", "serializable": "invalid"}),
    "lost update": (LOST_UPDATE, {"strong-session-causal": "valid", "snapshot-isolation": "invalid"}),
    "stale session": (STALE_SESSION, {"serializable": "valid", "strong-session-serializable": "invalid"}),
    "fractured read": (FRACTURED, {"read-committed": "valid", "read-atomic": "invalid"}),
}


def written(name: str, sessions: Sessions, folder: Path) -> SessionHistory:
    if name.startswith("Cobra"):
        cobra(sessions, folder, stamped=name != "Cobra")
        return read_cobra_folder(folder)
    content = WRITERS[name](sessions)
    assert session_format(content) == name
    return read_session_history(content)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", CASES)
def test_a_history_is_judged_alike_in_every_format(case: str, name: str, tmp_path: Path) -> None:
    sessions, expected = CASES[case]
    transcript = transcript_of(written(name, sessions, tmp_path))
    for level, verdict in expected.items():
        assert str(judge_transcript(transcript, consistency=level).validity) == verdict, level


@pytest.mark.parametrize("name", ["DBCop", "Plume text", "Cobra"])
def test_what_an_aborted_transaction_wrote_must_not_be_read(name: str, tmp_path: Path) -> None:
    history = written(name, [["w y 1", "!w x 1"], ["r x 1"]], tmp_path)
    assert int(Type.FAIL) in history.status.tolist()
    verdict = judge_transcript(transcript_of(history), consistency="read-committed")
    assert list(verdict.details["anomalies"]) == ["G1a"]


def test_a_write_that_failed_in_a_successful_transaction_did_not_happen() -> None:
    content = bytearray(dbcop([["w x 1, w y 1"], ["r x 1, r y 1"]]))
    whole = transcript_of(read_session_history(bytes(content)))
    assert judge_transcript(whole, consistency="read-committed").validity is Validity.VALID
    at = content.index(struct.pack("<?QQ?", True, ord("x") - ord("a"), 1, True))
    content[at + 17] = 0
    verdict = judge_transcript(transcript_of(read_session_history(bytes(content))), consistency="read-committed")
    assert list(verdict.details["anomalies"]) == ["G1a"]


def test_real_time_is_never_concluded_from_sessions() -> None:
    transcript = transcript_of(read_session_history(plume([["w x 1"], ["r x 0"], ["r x 1"]])))
    verdict = judge_transcript(transcript, consistency="strict-serializable")
    assert verdict.validity is Validity.UNKNOWN and "no real time" in verdict.reason
    stale = transcript_of(read_session_history(plume(STALE_SESSION)))
    assert judge_transcript(stale, consistency="strict-serializable").validity is Validity.INVALID


def test_time_stamps_are_a_guess_and_never_a_demand() -> None:
    """The stamps say that the reader began after the writer had committed, and yet it saw nothing."""
    sessions: Sessions = [["w x 1"], ["r x 0"]]
    right = transcript_of(read_session_history(chronos(sessions, {1: (3, 4), 2: (1, 2)})))
    wrong = transcript_of(read_session_history(chronos(sessions, {1: (1, 2), 2: (3, 4)})))
    for transcript in (right, wrong):
        assert judge_transcript(transcript, consistency="strong-session-serializable").validity is Validity.VALID


def in_chronos(operations: str, times: int = 1) -> bytes:
    txn = f'{{"tid": 1, "sid": 0, "sts": {{"p": 1}}, "cts": {{"p": 2}}, "ops": [{operations}]}}'
    return f"[{', '.join([txn] * times)}]".encode()


WRITE = '{"t": "w", "k": 0, "v": 1}'
LARGE = 2**63
REFUSED = {
    "a key of Chronos": (
        in_chronos(f'{WRITE}, {{"t": "w", "k": {LARGE}, "v": 1}}'),
        f"transaction 1: a number of more than 64 bits: {LARGE}",
    ),
    "a value of Chronos": (in_chronos(f'{WRITE}, {{"t": "w", "k": 0, "v": {LARGE}}}'), f"more than 64 bits: {LARGE}"),
    "an element of Chronos": (
        in_chronos(f'{WRITE.replace("w", "a")}, {{"t": "r", "k": 0, "v": [1, {LARGE}]}}'), f"64 bits: {LARGE}"
    ),
    "a number of Plume": (f"w(1,5,0,1)\nw(1,{LARGE},0,2)\n".encode(), r"line 2: .* has a number of more than 64 bits"),
    "a book of Plume": (b"w(1," + b"9" * 5000 + b",0,1)\n", r"line 1: .* is not an operation"),
    "a damaged name in Chronos": (
        in_chronos(WRITE.replace('"v"', '"w"')), r"line 1: a history of Chronos that is damaged .*unknown field `w`"
    ),
    "a transaction that stands twice": (in_chronos(WRITE, 2), "its tid occurs twice"),
    "a transaction without a number": (b"w(1,1,0,0)\nr(1,1,0,-2)\n", "line 2: transaction -2"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_no_tool_writes_is_refused_with_its_place(case: str) -> None:
    content, words = REFUSED[case]
    with pytest.raises(MalformedHistory, match=words):
        read_session_history(content)


def test_numbers_of_plume_may_be_negative() -> None:
    history = read_session_history(b"w(1,-5,-2,1)\nr(1,-5,0,2)\n")
    assert (history.key.tolist(), history.value.tolist()) == ([1, 1], [-5, -5])


def test_lists_of_chronos() -> None:
    def ops(*parts: tuple[str, object]) -> list[dict[str, object]]:
        return [{"t": t, "k": 1, "v": v} for t, v in parts]

    def content(seen: list[int]) -> bytes:
        both = [ops(("a", 5)), ops(("a", 6)), ops(("r", [5])), ops(("r", seen))]
        stamp = {"p": 1, "l": 0}
        return json.dumps(
            [{"tid": i, "sid": i, "sts": stamp, "cts": stamp, "ops": o} for i, o in enumerate(both)]
        ).encode()

    good, bad = (transcript_of(read_session_history(content(seen))) for seen in ([5, 6], [6, 5]))
    assert good.model == "list-append"
    assert judge_transcript(good, consistency="serializable").validity is Validity.VALID
    assert judge_transcript(bad, consistency="serializable").validity is Validity.INVALID


def test_one_command_judges_a_folder_of_all_formats(tmp_path: Path) -> None:
    for name, write in WRITERS.items():
        (tmp_path / name.replace(" ", "-")).write_bytes(write(WRITE_SKEW))
    (tmp_path / "cobra").mkdir()
    cobra(WRITE_SKEW, tmp_path / "cobra")
    result = CliRunner().invoke(cli, ["check", "--consistency", "snapshot-isolation", str(tmp_path)])
    lines = result.stdout.splitlines()
    assert result.exit_code == 0 and len(lines) == 5 and all(line.startswith("valid") for line in lines), lines
    result = CliRunner().invoke(cli, ["check", "--json", str(tmp_path)])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {row["model"] for row in rows} == {"rw-register"} and {row["verdict"] for row in rows} == {"invalid"}
    assert result.exit_code == 1


def test_a_file_that_names_no_model_needs_one(tmp_path: Path) -> None:
    (tmp_path / "history.edn").write_text("{:process 0, :type :invoke, :f :read, :value nil}\n")
    result = CliRunner().invoke(cli, ["check", str(tmp_path)])
    assert result.exit_code == 3 and "give --model NAME" in result.stdout
    (tmp_path / "history.edn").write_bytes(plume(SERIALIZABLE))
    result = CliRunner().invoke(cli, ["check", "--model", "register", str(tmp_path)])
    assert (
        result.exit_code == 3 and "a history of rw-register in the format Plume text, not of register" in result.stdout
    )


def test_one_log_of_cobra_is_no_history(tmp_path: Path) -> None:
    cobra(SERIALIZABLE, tmp_path)
    result = CliRunner().invoke(cli, ["check", str(tmp_path / "T0.log")])
    assert result.exit_code == 3 and "name the folder" in result.stdout


@pytest.mark.parametrize("name", ["DBCop", "Plume text", "AWDIT text", "Chronos", "Cobra"])
def test_damage_is_refused_in_one_sentence_or_judged(name: str, tmp_path: Path) -> None:
    """Every cut and hundreds of flipped bytes: a reader raises MalformedHistory, and nothing else."""
    rng, refused = Random(name), 0
    if name == "Cobra":
        cobra(SERIALIZABLE, tmp_path)
        whole = (tmp_path / "T0.log").read_bytes()
    else:
        whole = WRITERS[name](SERIALIZABLE)
    cuts = [whole[:size] for size in range(1, len(whole))]
    flips = []
    for _ in range(400):
        content = bytearray(whole)
        content[rng.randrange(len(content))] = rng.randrange(256)
        flips.append(bytes(content))
    for content in cuts + flips:
        try:
            if name == "Cobra":
                (tmp_path / "T0.log").write_bytes(content)
                history = read_cobra_folder(tmp_path)
            elif session_format(content) is None:
                continue
            else:
                history = read_session_history(content)
        except MalformedHistory as damage:
            refused += 1
            assert "\n" not in str(damage) and len(str(damage)) < 300
            continue
        judge_transcript(transcript_of(history), consistency="serializable")
    assert refused > 20


def test_a_separator_of_awdit_that_is_cut_off_is_damage() -> None:
    whole = b"w 0 1\n-----\nw 0 2\n=====\nr 0 1\n-----\nr 0 2\n"
    assert len(read_session_history(whole).status) == 4
    for size in range(1, 5):
        with pytest.raises(MalformedHistory, match="line 6"):
            read_session_history(whole[: whole.rindex(b"-----") + size])


def test_a_count_is_not_believed_beyond_the_bytes_that_are_there() -> None:
    content = dbcop([["w x 1"]])
    at = content.index(struct.pack("<Q", 1) + struct.pack("<Q", 1) + b"\x01")
    for claimed in (2**63, 2**40, 3):
        damaged = content[:at] + struct.pack("<Q", claimed) + content[at + 8 :]
        with pytest.raises(MalformedHistory, match="damaged or cut off"):
            read_session_history(damaged)


def test_a_history_beyond_the_budget_is_unknown(tmp_path: Path) -> None:
    content = plume(SERIALIZABLE * 50)
    path = tmp_path / "large.txt"
    path.write_bytes(content)
    result = CliRunner().invoke(cli, ["check", "--size-bytes", str(len(content) * SIZE_FACTOR - 1), str(path)])
    assert result.exit_code == 2 and "the budget is" in result.stdout


def test_a_transaction_alone_that_writes_zeros_everywhere_is_the_initial_state(tmp_path: Path) -> None:
    sessions: Sessions = [["w x 0, w y 0"], ["r x 0, w x 1"], ["r x 1, r y 0"], ["w y 3", "r y 0"]]
    transcript = transcript_of(written("Plume text", sessions, tmp_path))
    assert len(transcript.txns.status) == 4 and not transcript.initial
    assert judge_transcript(transcript, consistency="serializable").validity is Validity.VALID
    assert judge_transcript(transcript, consistency="strong-session-serializable").validity is Validity.INVALID


def test_a_client_may_write_a_zero(tmp_path: Path) -> None:
    """Then a read of 0 shows that write, or that nothing was written."""
    sessions: Sessions = [["w x 1", "w x 0", "r x 0"], ["r y 0"]]
    transcript = transcript_of(written("Plume text", sessions, tmp_path))
    assert len(transcript.initial) == 1
    assert judge_transcript(transcript, consistency="strong-session-serializable").validity is Validity.VALID


def test_a_damaged_log_of_cobra_is_not_passed_over(tmp_path: Path) -> None:
    cobra([["w x 1"], ["r x 1"]], tmp_path)
    (tmp_path / "T0.log").write_bytes(b"nothing of Cobra")
    with pytest.raises(MalformedHistory, match=r"T0\.log"):
        read_cobra_folder(tmp_path)
