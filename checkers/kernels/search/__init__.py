"""Just-in-time linearization over configurations, and the search over tables of states."""
