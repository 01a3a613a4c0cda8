"""Judging of run folders, and of users' files."""
