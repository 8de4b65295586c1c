"""Fakes that ship: a clock moved by hand, files that forget, and the oracle that judges a crash."""
