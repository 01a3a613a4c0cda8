"""Runs a test: command line, spec, interpreter, run store, backends, report."""
