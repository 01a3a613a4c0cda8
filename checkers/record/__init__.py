"""The typed record of a run: what harness and nemesis write, and what every reader gets; one reader, one writer."""
