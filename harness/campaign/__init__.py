"""Campaigns: many runs, and one page that summarizes them."""
