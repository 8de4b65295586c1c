"""The embedded peers by name, each imported only when it is asked for."""

import importlib
from collections.abc import Callable
from pathlib import Path

from bench.peers.embedded import EmbeddedStore

_EMBEDDED = {
    "RocksDB": ("bench.peers.rocksdb", "RocksDbStore", "rocksdict"),
    "SQLite": ("bench.peers.sqlite", "SqliteStore", "sqlite3"),
    "LMDB": ("bench.peers.lmdb", "LmdbStore", "lmdb"),
}
EMBEDDED_NAMES = tuple(_EMBEDDED)


def missing(name: str) -> str | None:
    """What to install, or None."""
    package = _EMBEDDED[name][2]
    try:
        importlib.import_module(package)
    except ImportError:
        return f"the package {package} is not installed"
    return None


def open_embedded(name: str, folder: Path) -> EmbeddedStore:
    module, class_name, _ = _EMBEDDED[name]
    opener: Callable[[Path], EmbeddedStore] = getattr(importlib.import_module(module), class_name)
    return opener(folder)
