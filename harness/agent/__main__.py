"""`python -m harness.agent`."""

from harness.agent.program import main

main()
