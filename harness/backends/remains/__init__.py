"""What a killed harness leaves behind, and what removes it."""
