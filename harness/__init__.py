"""The harness, which runs tests: command line, spec, interpreter, backends, judging, stored runs, report."""
