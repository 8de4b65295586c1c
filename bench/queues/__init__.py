"""Queues and services over SMP: what a message costs, what a million associations cost."""
