"""Protocols: bytes to commands and events to bytes, without sockets."""
