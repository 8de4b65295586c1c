"""Vectorised work over buffers, shared by whoever handles many records at once."""
