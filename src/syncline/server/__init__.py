"""The router process: its settings, its faces, and the committer between them and the store."""
