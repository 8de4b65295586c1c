"""Records of queues, services and associations, beside the messages of the log."""
