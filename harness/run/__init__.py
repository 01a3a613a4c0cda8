"""Runs one test: conducts its phases, records its history, and keeps what it left behind."""
