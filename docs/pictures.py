"""Draw the pictures of these pages, from runs that are stored with the tests.

    python docs/pictures.py

Writes `report.png`, `witness.png`, `kafka.png`, `terminal.png`, `step.png`, `serve.png` and `night.png`.  Needs
Debian's chromium and the packages of the tests.  Run it by hand when a page has changed; `reading-a-report.md` quotes
the same run.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console
from rich.text import Text

from harness.campaign.page import write_dashboard
from harness.judge.judge_run import judge
from harness.lake.lake import Lake
from harness.lake.past import past_runs, standings
from harness.started import STARTED_AS

DOCS = Path(__file__).resolve().parent
DATA = DOCS.parent / "tests/data"
RUNS = {
    "kraft-stale-read": "20261122T054854Z-1-stale-read",
    "kraft-minority-commit": "20261124T101844Z-1-minority-commit",
    "kraft-lone-vote": "20261124T101510Z-1-lone-vote",
    "kraft-partition": "20261122T053012Z-1",
}
KAFKA = ("kafka-commit-before-processing", "20261129T184019Z-7-commit-before-processing")
"""Archive and name of the run of Kafka.  Only its own picture shows it: pages of many runs show the bundled system."""
PICTURES = ("report", "witness", "kafka", "terminal", "step", "serve", "night")
WIDTH, COLUMNS = 1280, 144
PAPER = '<body style="margin:0;padding:20px 24px;background:#fbfaf7;color:#1b1f24">{code}</body>'


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        os.chdir(scratch)  # commands on the page name the run, and the program, as its reader would
        os.environ[STARTED_AS] = "krucible"
        folders = [unpacked(archive, name) for archive, name in RUNS.items()]
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = shown(browser, folders[0] / "report.html")
        page.add_style_tag(content="nav { position: static !important; }")
        head_and_timeline(page, "report.png")
        page.locator("#finding-1").screenshot(path=DOCS / "witness.png")
        terminal(browser, "terminal.png", "analyze", "--in-process", str(folders[0]))
        terminal(browser, "step.png", "step", str(folders[0]), *["--key", "k2", "--from", "7.4", "--to", "7.6"])
        runs = past_runs(Lake(Path("results/lake").resolve()))
        night = write_dashboard(Path("results"), "4 runs ended as expected.", standings([], runs), runs)
        shown(browser, night, 640).screenshot(path=DOCS / "night.png")
        serve(browser)
        browser.close()
    for picture in PICTURES:
        few_colours(DOCS / f"{picture}.png")


def unpacked(archive: str, name: str) -> Path:
    """Judge a stored run again, add it to the lake, and return its folder."""
    folder = Path("results", "test-partition", name)
    folder.mkdir(parents=True)
    with tarfile.open(DATA / f"{archive}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    judge(folder, None, print)
    Lake(Path("results/lake").resolve()).add(folder.resolve())
    return folder


def shown(browser: Browser, path: Path, height: int = 900) -> Page:
    page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light")
    page.goto(path.resolve().as_uri())
    page.wait_for_timeout(1500)  # until its script has drawn
    return page


def few_colours(path: Path) -> None:
    """Reduce a picture to 256 colours: the file shrinks to a third, and colours change little."""
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


def head_and_timeline(page: Page, name: str) -> None:
    box = page.locator("#timeline").bounding_box()
    assert box is not None
    clip = {"x": 0.0, "y": 0.0, "width": float(WIDTH), "height": box["y"] + box["height"]}
    page.screenshot(path=DOCS / name, full_page=True, clip=clip)  # type: ignore[arg-type]


def krucible(*words: str) -> str:
    """Return what a command prints on a terminal in colour."""
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    command = [sys.executable, "-m", "harness", *words]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False).stdout


def terminal(browser: Browser, name: str, *words: str) -> None:
    """Draw a command and its output, starting at the verdict if there is one."""
    printed = Text.from_ansi(krucible(*words))
    printed = printed[max(0, printed.plain.find("Invalid: ")) :]
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ krucible {' '.join(words)}\n", style="bold"), printed, sep="\n")
    Path("terminal.html").write_text(console.export_html(inline_styles=True, code_format=PAPER.format(code=PRE)))
    shown(browser, Path("terminal.html"), 100).screenshot(path=DOCS / name, full_page=True)


PRE = '<pre style="font:14px/1.5 DejaVu Sans Mono,monospace;margin:0">{code}</pre>'


def serve(browser: Browser) -> None:
    command = [sys.executable, "-m", "harness", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = next(line for line in process.stdout if line.startswith("runs: ")).split()[1]
            page = browser.new_page(viewport={"width": WIDTH, "height": 720}, color_scheme="light")
            page.goto(address)
            page.screenshot(path=DOCS / "serve.png")
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
