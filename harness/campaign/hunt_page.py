"""The page of a hunt: what it found, with its replays, and every test that it ran."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from harness.campaign.hunt_log import HuntLog
from harness.campaign.signatures import HuntRun
from harness.plain_words import plural
from harness.report.render import environment, template_text

PAGE = "index.html"
STYLES = ("styles/base.css", "styles/campaign.css")


def render_hunt(log: HuntLog) -> Path:
    """Write the page into the folder of the hunt; its path."""
    groups = log.groups()
    html = environment().get_template("hunt.html.j2").render(
        title=_title(log),
        subject=Path(log.subject).name,
        seed=log.seed,
        mark="invalid" if groups else "valid" if any(run.verdict == "valid" for run in log.tests) else "unknown",
        groups=groups,
        runs=log.runs,
        mark_of=_mark_of,
        style=Markup("\n".join(map(template_text, STYLES))),
    )  # fmt: skip
    page = log.folder / PAGE
    page.write_text(html, encoding="utf-8", errors="replace")
    return page


def _title(log: HuntLog) -> str:
    tests = plural(len(log.tests), "test")
    found = len(log.groups())
    return f"{plural(found, 'finding')} in {tests}." if found else f"Nothing was found in {tests}."


def _mark_of(run: HuntRun) -> str:
    return run.verdict if run.verdict in ("valid", "invalid") else "unknown"
