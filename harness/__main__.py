"""`python -m harness`: see `harness.cli.main`."""

from harness.cli.main import main

main()
