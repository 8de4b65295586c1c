"""How much it takes to find out how two sets of ids differ: bytes, round trips, time."""
