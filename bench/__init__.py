"""Benchmarks: our parts beside their peers, in alternating rounds, each claim with its bar.

Run one from the repository root: `python -m bench.log`, or `make bench NAME=log`.
"""
