"""The bundled KRaft: Kafka's Raft metadata quorum, controller and metadata-serving broker in one process."""
