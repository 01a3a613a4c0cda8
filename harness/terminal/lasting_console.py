"""A console whose reader may go, as in `krucible run … | head`: what is left to say goes nowhere, and the run goes on.

rich ends the program instead.  A run that took minutes would then have no verdict, and its nodes no proper end.
"""

from __future__ import annotations

import os

from rich.console import Console


class LastingConsole(Console):
    def on_broken_pipe(self) -> None:
        """Let this console and everything else that writes to the same stream write to nowhere from now on."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)
