"""What measures, and what keeps figures: clocks, memory, goals, writers, and quorums to load."""
