"""A store of one folder and a few text files per queue (docs/formats/journal.md)."""
