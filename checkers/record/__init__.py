"""The typed record of a run, which the harness and nemesis write and all others read, through one reader and writer."""
