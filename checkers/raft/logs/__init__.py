"""What stands in the logs of the nodes, compared with each other and with snapshots."""
