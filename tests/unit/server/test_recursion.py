"""Folding may go deep: a stack that is full would end the process."""

import subprocess
import sys

# Many updates, each as deep as one may be, each in the last; then the outermost type is deleted.
FOLDS_A_DEEP_DOCUMENT = """
import sys
from syncline.core.kinds.yjs import YjsFolding
from syncline.server.app import make_room_for_recursion
from syncline.values import limits
from syncline.wire.lib0 import var_uint
from syncline.wire.yjs_updates import check_update

def nested(start, count):
    structs = [
        b"\\x27" + (b"\\x00\\x07" + var_uint(at - 1) if at else b"\\x01\\x01t") + b"\\x01k\\x01"
        for at in range(start, start + count)
    ]
    return b"\\x01" + var_uint(count) + b"\\x07" + var_uint(start) + b"".join(structs) + b"\\x00"

if sys.argv[1] == "room":
    make_room_for_recursion()
folding = YjsFolding()
for start in range(0, 100_000, limits.update_depth_max):
    update = nested(start, limits.update_depth_max)
    check_update(update)
    folding.apply(update)
folding.state()
folding.apply(bytes.fromhex("00 01 07 01 00 01"))
folding.state()
print("folded")
"""


def folded(way: str) -> subprocess.CompletedProcess[str]:
    # The limit that most systems have, whatever this process was given.
    shell = ["/bin/sh", "-c", 'ulimit -S -s 8192; exec "$@"', "sh"]
    return subprocess.run(
        [*shell, sys.executable, "-c", FOLDS_A_DEEP_DOCUMENT, way],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_a_document_far_deeper_than_any_is_folded() -> None:
    assert folded("room").stdout == "folded\n"


def test_without_room_for_it_the_process_ends() -> None:
    """What the test above is worth."""
    assert folded("none").returncode < 0
