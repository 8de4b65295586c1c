"""Drift looked for by hand: between two files of ids, between two data folders."""
