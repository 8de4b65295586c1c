"""The durable log beside Redis, NATS, SQLite, RocksDB and LMDB."""
