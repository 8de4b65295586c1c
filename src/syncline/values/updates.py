"""One stored update of a document, and who wrote it."""

import msgspec


class Update(msgspec.Struct, frozen=True, gc=False):
    """A mutation at its place in the document. A struct: one is made per mutation (bench:
    documents)."""

    seq: int
    time_ms: int
    # Names the replica that wrote it; with the clock it names the mutation.
    author: str
    # 0: the author's protocol has no clocks, and what it sends again is stored again.
    clock: int
    body: bytes
