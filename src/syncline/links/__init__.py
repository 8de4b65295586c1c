"""Connections that both the client and the router open to other routers."""
