"""`python -m harness.agent`."""

from harness.agent.process import main

main()
