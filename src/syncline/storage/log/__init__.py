"""The default engine: one shared, group-committed log for every stream (docs/formats/log.md)."""
