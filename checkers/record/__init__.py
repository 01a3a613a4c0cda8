"""The typed record of a run, written by harness and nemesis and read by all others; one reader, one writer."""
