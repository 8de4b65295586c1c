"""Queues of SMP routers: a client, and an agent that stays subscribed. Page: docs/smp-client.md"""
