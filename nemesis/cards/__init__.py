"""Which faults are dealt, and when: the deck, what faults have met, moments that a card waits for, and schedules"""
