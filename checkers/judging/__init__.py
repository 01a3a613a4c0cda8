"""Judges the parts of a run and combines their findings into verdicts; falsifies runs to test the checkers."""
