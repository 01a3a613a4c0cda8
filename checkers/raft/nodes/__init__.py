"""What every node reports of itself: epochs, marks and applied states."""
