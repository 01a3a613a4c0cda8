"""Where nodes live: backends that make them, cut their links and remove them, and what all backends share."""
