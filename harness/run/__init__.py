"""Runs one test: conducts its phases, records its history, and keeps its files."""
