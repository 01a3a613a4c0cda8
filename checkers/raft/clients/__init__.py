"""What clients were answered, against what the logs hold."""
