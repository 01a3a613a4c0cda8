"""What `nemesis/inject.py` plays a schedule with: resolving a card, and keeping the record of its fault."""
