"""Sets of random ids as snapshots: written by the export's own writer, at its row group size.

Services are random ids, sorted, and have the same number of ids each. An id is sorted by its first
eight bytes, which are all different, so sorting is that of numbers.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.pipeline.setting import Setting
from bench.support.processes import BenchError
from syncline.kernels import compiled
from syncline.kernels.md5 import xor_md5
from syncline.kernels.prefix_digests import DigestSums, depth_for, prefix_digests
from syncline.kernels.xxh3 import ID_BYTES, Ids
from syncline.pipeline.arrow import names_and_types, table_of, without
from syncline.pipeline.schemas import ASSOCIATIONS, CLAIMS, RANGE_DIGESTS
from syncline.pipeline.snapshots import RowWriter, association_rows, range_rows_of
from syncline.pipeline.tables import Load, Table, TableSpec

SERVICE_COUNT = 100
ROLE = "M"
_KEY_BYTES = 8
# In Parquet an id takes its bytes and a little for its length.
BYTES_PER_ID = 30


def random_set(random: np.random.Generator, count: int) -> Ids:
    """Sorted, each once."""
    keys = np.sort(random.integers(0, 1 << 64, count, np.uint64))
    if (keys[1:] == keys[:-1]).any():
        raise BenchError("two random ids begin alike; take another seed")
    ids = np.empty((count, ID_BYTES), np.uint8)
    ids[:, :_KEY_BYTES] = keys.astype(">u8").view(np.uint8).reshape(-1, _KEY_BYTES)
    rest = np.frombuffer(random.bytes(count * (ID_BYTES - _KEY_BYTES)), np.uint8)
    ids[:, _KEY_BYTES:] = rest.reshape(count, -1)
    return ids


def services(random: np.random.Generator) -> list[bytes]:
    return sorted(random.bytes(ID_BYTES) for _ in range(SERVICE_COUNT))


def shares(total: int) -> list[int]:
    """For each service its part of so many."""
    return [
        total * (place + 1) // SERVICE_COUNT - total * place // SERVICE_COUNT
        for place in range(SERVICE_COUNT)
    ]


def write_snapshot(
    tables: Path, name: str, sets: Iterable[tuple[bytes, Ids]], *, has_claims: bool = False
) -> None:
    """Commit a snapshot without range digests; without claims as well, unless they are wanted."""
    compiled.prepare()
    with ExitStack() as stack:
        loads = [_begin(stack, tables, spec, name) for spec in (CLAIMS, ASSOCIATIONS)]
        with ExitStack() as writers:
            claim_rows, id_rows = (writers.enter_context(RowWriter(load, name)) for load in loads)
            for service, ids in sets:
                id_rows.add(association_rows(service, ROLE, ids))
                id_rows.end_set()
                if has_claims:
                    claim_rows.add(_claim(service, ids))
        for load in loads:
            load.commit({"job": "bench"})


def write_ranges(tables: Path, name: str, sets: Iterable[tuple[bytes, Ids]]) -> None:
    """The range digests of a snapshot, as its export would have written them."""
    compiled.prepare()
    with ExitStack() as stack:
        load = _begin(stack, tables, RANGE_DIGESTS, name)
        with RowWriter(load, name) as rows:
            for service, ids in sets:
                sums = DigestSums(depth_for(len(ids)))
                sums.add(ids)
                rows.add(range_rows_of(service, ROLE, sums.depth, sums.digests()))
        load.commit({"job": "bench"})


def _begin(stack: ExitStack, tables: Path, spec: TableSpec, name: str) -> Load:
    return stack.enter_context(Table(tables, spec).begin({f"snapshot/{name}": 1}))


def _claim(service: bytes, ids: Ids) -> pa.Table:
    whole = prefix_digests(ids, 0)
    md5 = np.frombuffer(xor_md5(ids), ">i8")
    halves = (int(whole.xor_high[0]), int(whole.xor_low[0]))
    sums = (int(part[0]) for part in whole.sums)
    row = (service, ROLE, len(ids), *halves, *sums, *map(int, md5), 1)
    schema = without(CLAIMS.schema, ["snapshot"])
    names = [name for name, _ in names_and_types(schema)]
    return table_of({name: [value] for name, value in zip(names, row, strict=True)}, schema)


def files_of(tables: Path, name: str) -> list[str]:
    """Of the ids of a snapshot, for whoever reads them by itself."""
    version = Table(tables, ASSOCIATIONS).version().skipping("snapshot", name, name)
    return [str(each.path) for each in version.files]


def digest_sets(setting: Setting, total: int) -> Iterator[tuple[bytes, Ids]]:
    random = setting.random(total)
    for service, count in zip(services(random), shares(total), strict=True):
        yield service, random_set(random, count)
