"""Runs of systems that others wrote: known findings, their counterparts and clean runs, and the story of each run"""
