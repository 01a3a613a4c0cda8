"""Systems under test, and the interface that they implement."""
