"""A quorum of real consensus cores in one process, with simulated disks, connections and time."""
