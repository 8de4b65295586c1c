"""The queue protocol (SMP), versions 6 to 20: bytes to values and back, and its cryptography."""
