"""What a run leaves for its reader: report.html, plots, junit.xml, and the nightly page over many runs.

render(run_folder) -> path of report.html      after judging, once per run
verdict_in_words(results, test) -> str         for the terminal and the page's head
render_summary(run_folders, out) -> out        one page over many runs
prewarm()                                      optional: load matplotlib while the test still runs
"""

from harness.report.render import prewarm, render
from harness.report.summary import render_summary
from harness.report.words import verdict_in_words

__all__ = ["prewarm", "render", "render_summary", "verdict_in_words"]
