"""Rendering whole run folders: what must be on the page of every run."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from journals import edit_journal, recorded, write_journal
from report_runs import build

from checkers.record.faults import KEPT
from harness.report import run_data as load_module
from harness.report import timeline_view as timeline
from harness.report.environment import STYLES, json_block, template_text
from harness.report.render import prewarm, render
from harness.report.run_data import load

NASTY = "</script><img src=x onerror=alert(1)>\"'`&--><!-- \u2028\u202e ünïcode " + "x" * 3000


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The page of a kind of run, rendered once."""

    @cache
    def page(kind: str) -> str:
        return render(build(tmp_path_factory.mktemp("test-partition") / kind, kind)).read_text(encoding="utf-8")

    return page


def visible(html: str) -> str:
    """The words of a page, without style, script and tags."""
    html = re.sub(r"<(style|script|svg)\b.*?</\1>", " ", html, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("valid", "Valid: 5 checkers|Enough tested?|faults were installed and measured|make test-partition SEED=7"),
        ("stale", "Invalid: at|still believed it led epoch 1|Why no other order saves it"),
        ("logs", "Offset|epoch 2|n4|high watermark when its log was copied"),
        ("elections", "Votes of epoch 3|became leader|leader of epoch 3"),
        ("several", "3 checkers found 3 kinds of violations|A violation that several checkers see is counted by each"),
        ("kill", "n2 dead|stopped|Fault 5 was skipped|no node led|Ended by fault 2|Ended by itself|Its last words"),
        ("unknown", "Unknown: share of ok operations in faults|does not show enough to count as a pass"),
        ("canary", "Valid: 2 checkers|No fault was injected"),
        ("interrupted", "Unknown: this run has not been judged|interrupted|results.json is not there"),
        ("empty", "Unknown: this run has not been judged|There is no history|journal.jsonl is not there"),
    ],
)
def test_every_kind_of_run_has_its_page(page_of: Callable[[str], str], kind: str, shown: str) -> None:
    words = visible(page_of(kind))
    assert [part for part in shown.split("|") if part not in words] == []


def with_results(folder: Path, kind: str = "valid", change: Callable[[Any], object] | None = None, **more: Any) -> str:
    """The page of a made-up run whose results.json says something else."""
    path = build(folder, kind) / "results.json"
    results = json.loads(path.read_text()) | more
    if change is not None:
        change(results)
    path.write_text(json.dumps(results))
    return render(folder).read_text()


def head_of(page: str) -> str:
    return page[page.index('id="verdict"') : page.index('<dl class="facts"')]


MISSED = {"planted": {"bug": "stale-read", "found": False, "reason": "linearizability is valid"}}
MISSED_WORDS = "Unknown: planted bug stale-read: not found by linearizability. Linearizability is valid."
FAILED = {"verdict": "harness failed", "exit_code": 3}
NEVER_READY = "the subject never became ready: the server of n1 is dead"


@pytest.mark.parametrize(
    ("results", "title"),
    [
        (MISSED | {"verdict": "unknown"}, MISSED_WORDS),
        (MISSED | {"verdict": "valid"}, MISSED_WORDS),
        (FAILED | {"reason": "No node became ready"}, "The harness failed: no node became ready."),
        (FAILED | {"reason": NEVER_READY, "not_tested": True}, f"No test took place: {NEVER_READY}."),
    ],
)
def test_a_run_that_did_not_pass_is_amber_and_its_first_line_says_why(
    tmp_path: Path, results: dict[str, Any], title: str
) -> None:
    head = head_of(with_results(tmp_path / "run", **results))
    assert '<svg class="mark unknown"' in head and "mark valid" not in head
    assert f"<h1>{title}</h1>" in head and head.count("not found") <= 1


def test_a_recovery_that_nothing_showed_is_not_praised_and_a_complaint_is_no_death(tmp_path: Path) -> None:
    root = build(tmp_path / "run", "valid")
    results, outcome = json.loads((root / "results.json").read_text()), recorded(root, "outcome")
    results["checkers"]["recovery"] = {"verdict": "unknown", "reason": "nothing shows that n2 came back"}
    outcome["recovery"] = {"needed": True, "recovered": True, "seconds": 0.5, "limit_s": 60}
    outcome["deaths"] = [{"node": "n2", "time_ns": -1, "ordered": False, "reason": "PANIC", "excerpt": "PANIC: lost"}]
    (root / "results.json").write_text(json.dumps(results))
    write_journal(root, outcome=outcome)
    page = visible(render(root).read_text())
    assert (
        "0.50 s after the faults were over, every process was running (limit 60 s). It is unknown whether every" in page
    )
    assert "Complained in its log" in page and "Ended by itself" not in page


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("elections", "each epoch may have one leader only"),
        ("stale", r"Where \d+\.\d+ s into the test, on n3, key k\d\. Fault 1 .* had been in force for"),
        ("stale", r"Cause n3 still believed it led epoch 1, \d+ m?s after n\d had been elected for epoch 2.* Meaning"),
        ("logs", r"Where In the log of n\d at offset \d+, by copy 0 \(final\), which does not show since when"),
    ],
)
def test_the_head_explains_a_violation(page_of: Callable[[str], str], kind: str, words: str) -> None:
    head = head_of(page_of(kind))
    assert re.search(words, visible(head))
    assert ("On the timeline" in head) == (kind != "logs"), "a copy of a log shows no moment"


LOST = ("kafka", "lost-write", "lost-write: 1 was replaced")
DIED = ("nodes-stay-up", "node died", "n1 died unexpectedly: status 1; it printed: no table")
NO_TRACES = "Not known: this system writes no trace of its own steps, so only answers to clients were judged."


@pytest.mark.parametrize(
    ("violation", "traces", "title", "cause"),
    [
        (LOST, False, "", NO_TRACES),
        (LOST, True, "", "Not known: no checker saw a wrong step before this violation."),
        (DIED, False, "n1 died", "The process itself gave this reason: status 1; it printed: no table."),
    ],
)
def test_a_cause_is_not_known_or_what_a_process_said_itself(
    tmp_path: Path, violation: tuple[str, str, str], traces: bool, title: str, cause: str
) -> None:
    folder = build(tmp_path / "run", "canary")
    results, outcome = json.loads((folder / "results.json").read_text()), recorded(folder, "outcome")
    test = json.loads((folder / "test.json").read_text())
    name, kind, summary = violation
    witness = {"kind": kind, "summary": summary, "events": [], "facts": {}}
    invalid = {"verdict": "invalid", "exit_code": 1, "checkers": {name: {"verdict": "invalid", "witness": [witness]}}}
    (folder / "results.json").write_text(json.dumps(results | invalid))
    (folder / "test.json").write_text(json.dumps(test | {"spec": test["spec"] | {"subject": "kraft"}}))
    write_journal(folder, outcome=outcome | {"declares": outcome.get("declares", {}) | {"traces": traces}})
    head = visible(head_of(render(folder).read_text()))
    assert f"Cause {cause}" in head and f"Invalid: {title}" in head


def test_the_first_wrong_step_leads_to_its_proof_and_the_violation_to_its_key(page_of: Callable[[str], str]) -> None:
    page = page_of("several")
    cause = page[page.index("<dt>Cause</dt>") : page.index("<dt>Meaning</dt>")]
    proof = re.search(r'First wrong step seen: (The logs of .*?) <a href="#(finding-\d+)">Its proof</a>', cause)
    assert proof is not None and proof[1] in visible(page[page.index(f'id="{proof[2]}"') :])
    assert re.search(r'href="#timeline\?t=[\d.]+-[\d.]+&amp;key=k\d&amp;sel=finding\.1">On the timeline', page)


def test_a_copy_of_a_log_names_the_faults_that_hit_its_disk(page_of: Callable[[str], str], tmp_path: Path) -> None:
    folder = build(tmp_path / "test-power" / "logs", "logs")
    [node] = re.findall(r"In the log of (n\d)", visible(page_of("logs")))[:1]
    faults = recorded(folder, "faults")
    other = "n1" if node != "n1" else "n2"
    for fault, hit, kept in ((faults[0], node, "lose"), (faults[1], other, "lose"), (faults[2], node, None)):
        fault |= {"nodes": [hit], "settings": {KEPT: kept} if kept else {}, "words": f"power of {hit}"}
    edit_journal(folder, "faults", faults)
    where = visible(head_of(render(folder).read_text()))
    assert f"Its disk was hit by fault {faults[0]['card']['number']} (power of {node})." in where


def test_the_legend_stands_open_below_the_drawing_and_names_only_what_is_drawn(page_of: Callable[[str], str]) -> None:
    several, canary = page_of("several"), page_of("canary")
    legend = several[several.index('<ul class="legend') : several.index('id="b-all"')]
    assert "<details" not in several[several.index('<section id="timeline"') : several.index(legend)]
    for words in ("red tick: another violation", "deposed, a newer leader exists", "candidate, asks for votes"):
        assert words in legend and words not in canary
    assert "strip on top" in canary


def test_the_text_to_paste_is_complete_without_the_page(page_of: Callable[[str], str]) -> None:
    page = html.unescape(page_of("stale"))
    text = re.search(r'<pre id="plain-1"[^>]*>(.*?)</pre>', page, re.S)
    assert text is not None
    for part in ("Linearizability: stale read", "Revision: ", "had been in force", "├", "╞", "row ", "Run again: make"):
        assert part in text[1], part
    assert max(len(line) for line in text[1].splitlines()) <= 620


def test_totals_count_all_violations_and_not_the_witnesses_kept(tmp_path: Path) -> None:
    def count(results: dict[str, Any]) -> None:
        for checker in results["checkers"].values():
            if checker["verdict"] == "invalid":
                checker["looked_at"]["violations"] = len(checker["witness"]) + 38

    page = with_results(tmp_path / "run", "several", count)
    assert '<h2 id="h-findings">3 kinds of violations</h2>' in page and "3 checkers found 3 kinds of violations" in page
    assert set(re.findall(r"<small>\((?:about )?(\d+) found, 1 shown\)", page)) == {"39"}


@pytest.mark.parametrize(
    ("declares", "words"),
    [
        ({"registers_brokers": True}, "Roles and epochs are those of the controllers; leaders of partitions"),
        ({"leaders_of_keys": True}, "leaders of single keys are not drawn"),
        ({}, "c1 and c2 are the hosts of the clients."),
    ],
)
def test_the_timeline_says_what_it_leaves_open(tmp_path: Path, declares: dict[str, bool], words: str) -> None:
    folder = build(tmp_path / "test-partition" / "stale", "stale")
    outcome = recorded(folder, "outcome")
    outcome["declares"] |= declares
    edit_journal(folder, "outcome", outcome)
    page = render(folder).read_text()
    assert words in page and page.count("are not drawn") == len(declares)


def test_the_page_asks_nothing_of_the_network(page_of: Callable[[str], str]) -> None:
    html = page_of("several")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    assert "default-src 'none'" in policy[1] and "unsafe-eval" not in policy[1]
    scripts = re.findall(r"<script>(.*?)</script>", html, flags=re.S)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy[1].replace("&#39;", "'")
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", html)
    assert not re.search(r"url\((?!#)", html) and "@import" not in html


def test_hostile_text_stays_text_wherever_a_run_can_carry_it(tmp_path: Path) -> None:
    html = render(build(tmp_path / "test-partition" / "several", "several", nasty=NASTY)).read_text(encoding="utf-8")
    assert "<img" not in html
    assert html.count("</script>") == 2
    assert "onerror=alert(1)&gt;" in html
    block = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, flags=re.S)
    assert block is not None
    assert any(key.startswith("</script>") for key in json.loads(block[1])["ops"]["keys"])
    ET.parse(tmp_path / "test-partition" / "several" / "junit.xml")


def test_a_json_block_cannot_be_closed_from_within() -> None:
    text = json_block({"a": "</script><!--&\u2028\ud800"})
    assert not set("<>&") & set(text)
    assert json.loads(text)["a"] == "</script><!--&\u2028\ud800"


def test_red_is_for_violations_only(page_of: Callable[[str], str]) -> None:
    html = page_of("unknown")
    assert "bar-bad" not in re.sub(r"<style>.*?</style>", "", html, flags=re.S)
    assert json.loads(re.search(r'application/json">(.*?)</script>', html, flags=re.S)[1])["violations"] == []  # type: ignore[index]


def test_a_fault_that_was_not_as_ordered_is_framed(tmp_path: Path) -> None:
    folder = build(tmp_path / "run", "valid")
    faults = recorded(folder, "faults")
    pair = ">".join(faults[0]["cut"][0])
    faults[0] |= {"achieved": "not achieved", "reason": "a cut link let packets through"}
    faults[0]["inject_proof"]["links"][pair] = [150, 3]
    write_journal(folder, faults=faults)
    html = render(folder).read_text()
    assert html.count('class="cut wrong"') == 1
    assert "1 was not achieved" in visible(html)


def test_broken_files_are_said_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = build(tmp_path / "run", "valid")
    (folder / "journal.jsonl").write_text("{ not json\n")
    (folder / "history.parquet").write_bytes(b"PAR1 torn")
    (folder / "tables" / "trace" / "n2.parquet").write_bytes(b"")
    words = visible(render(folder).read_text())
    for part in ("journal.jsonl cannot be read", "no history to show", "trace of n2", "Log matching"):
        assert part in words


def test_junit_says_the_same_as_the_page(tmp_path: Path) -> None:
    folder = build(tmp_path / "test-partition" / "run", "several")
    render(folder)
    suite = ET.parse(folder / "junit.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "3", "0")
    failed = {case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None}
    assert failed == {"linearizability", "log-matching", "election-safety"}
    vague = render(build(folder.with_name("vague"), "unknown")).with_name("junit.xml")
    assert ET.parse(vague).getroot()[0].get("errors") == "1"


@pytest.mark.parametrize(
    "results",
    [
        {"verdict": "harness failed", "exit_code": 3, "checkers": {}, "reason": "no room", "failure": "no room"},
        {"verdict": "unknown", "exit_code": 2, "checkers": {}, "summary": "nothing was judged"},
        {"verdict": "unknown", "exit_code": 2, "checkers": {"vote-once": {"verdict": "valid"}}},
        {"verdict": "valid", "exit_code": 3, "checkers": {"vote-once": {"verdict": "valid"}}, "failure": "no report"},
        {},
    ],
)
def test_a_run_that_did_not_pass_is_never_green_in_junit(tmp_path: Path, results: dict[str, object]) -> None:
    with_results(tmp_path / "run", change=lambda known: (known.clear(), known.update(results)))
    suite = ET.parse(tmp_path / "run" / "junit.xml").getroot()[0]
    assert suite.get("errors") == "1"
    assert suite.get("tests") == str(len(list(suite.iter("testcase"))))
    assert [case.get("name") for case in suite.iter("testcase") if case.find("error") is not None] == ["the run itself"]


def test_a_very_long_run_says_what_it_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "MAX_OPERATIONS", 2000)
    folder = build(tmp_path / "run", "stale")
    words = visible(render(folder).read_text())
    assert "The timeline shows 2,000 of 5," in words
    ops = load(folder).operations
    packed, _ = timeline.pack(ops, [3 * 10**9], [])
    types = np.frombuffer(zlib.decompress(base64.b64decode(packed["type"])), "u1")
    assert (types != 1).sum() == (ops.type != 1).sum(), "what failed or is unknown goes first"


def test_an_operation_of_before_the_beginning_is_drawn_at_the_beginning(tmp_path: Path) -> None:
    folder = build(tmp_path / "run", "stale")
    path = folder / "history.parquet"
    history = pq.read_table(path, partitioning=None)
    place = history.schema.get_field_index("time_ns")
    times = history["time_ns"].to_numpy() - 3 * 10**9
    pq.write_table(history.set_column(place, history.schema.field(place), pa.array(times)), path)
    ops = load(folder).operations
    assert (ops.end_ns < 0).any()
    render(folder)
    packed, _ = timeline.pack(ops, [], [])
    starts = np.frombuffer(zlib.decompress(base64.b64decode(packed["t"])), "<u4").cumsum(dtype="u4") * packed["unit"]
    assert starts.min() == 0.0 and starts.max() <= ops.start_ns.max() / 1e9


def test_the_page_of_a_minute_is_light_and_there_before_its_reader_gets_impatient(tmp_path: Path) -> None:
    prewarm()
    folder = build(tmp_path / "run", "stale", length_s=60.0)
    began = time.process_time()
    page = render(folder)
    spent_s = time.process_time() - began
    assert spent_s < 4.0, "about 1 s of CPU on an idle machine"
    assert page.stat().st_size <= 600_000


def test_after_the_first_violations_the_evidence_is_folded(tmp_path: Path) -> None:
    def more(results: dict[str, Any]) -> None:
        results["checkers"]["election-safety"]["witness"] *= 4

    html = with_results(tmp_path / "run", "several", more)
    assert html.count('class="folded"') == 4, "the leading finding and its cause are open"
    assert html.count('<article class="finding"') == 6


def test_of_many_violations_of_one_kind_the_later_ones_are_words_alone(tmp_path: Path) -> None:
    def more(results: dict[str, Any]) -> None:
        results["checkers"]["log-matching"]["witness"] *= 12

    articles = with_results(tmp_path / "run", "logs", more).split("<article")[1:]
    drawn = [("Log entries by offset and node" in each, "to paste elsewhere" in each) for each in articles]
    assert drawn[:2] == [(True, True)] * 2 and set(drawn[2:]) == {(False, False)}


def test_a_history_that_is_too_long_to_hold_is_left_out_and_the_page_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build(tmp_path / "run", "stale")
    rows = pq.read_metadata(folder / "history.parquet").num_rows
    monkeypatch.setattr(load_module, "ROWS_SHOWN_MAX", rows - 1)
    monkeypatch.setattr(load_module, "read_history", lambda _: pytest.fail("the whole history was read"))
    data = load(folder)
    assert (data.event_count, len(data.operations)) == (rows, 0)
    text = visible(render(folder).read_text(encoding="utf-8"))
    assert f"The history has {rows:,} rows" in text and "Invalid: at" in text


def test_figures_that_nothing_demands_are_no_criteria_that_were_met(tmp_path: Path) -> None:
    free = {"name": "reads", "value": 4, "least": 0, "words": "", "demanded": False}
    checkers = {"vacuity": {"verdict": "valid", "details": {"criteria": [free, free | {"name": "writes"}]}}}
    page = visible(with_results(tmp_path / "run", verdict="valid", exit_code=0, checkers=checkers))
    assert "2 figures of the run" in page and "criteria were met" not in page


def test_type_has_five_sizes_and_space_a_grid() -> None:
    for name in STYLES:
        style = re.sub(r"@media print.*?\n}", "", template_text(name), flags=re.S)
        sizes = set(re.findall(r"font(?:-size)?:(?: \d{3})? ([\d.]+\w+|var\(--\w+\))", style))
        assert sizes <= {f"var(--t{place})" for place in range(1, 6)}, name
        spaces = [space for rule in re.findall(r"\b(?:padding|margin|gap)[\w-]*:([^;}]*)", style) for space in PX(rule)]
        assert not [space for space in spaces if int(space) > 2 and int(space) % 4], name


PX = re.compile(r"(?<![\w.-])(\d+)px").findall
