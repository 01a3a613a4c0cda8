"""Who led, and by whose votes."""
