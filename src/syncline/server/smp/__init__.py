"""Queues and services over SMP: the transport, the sessions and what their commands do."""
