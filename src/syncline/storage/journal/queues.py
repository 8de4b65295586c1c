"""The queues that are open: opened when first asked for, closed when long not asked for."""

from collections import OrderedDict
from collections.abc import Callable, Iterator

from syncline.storage.files import Files
from syncline.storage.journal.damage import DamageBook
from syncline.storage.journal.folders import FolderTree
from syncline.storage.journal.handles import HandlePool
from syncline.storage.journal.queue import OpenQueue
from syncline.storage.journal.recovery import recover_queue
from syncline.values.ids import StreamId


class OpenQueues:
    """An open queue is its state and the places of its unread entries; no file is held for it.

    No more than `count_max` stay open, but for those with something staged and those `in_use`.
    """

    def __init__(
        self,
        files: Files,
        pool: HandlePool,
        tree: FolderTree,
        book: DamageBook,
        new_file_id: Callable[[], str],
        count_max: int,
        is_in_use: Callable[[StreamId], bool],
    ) -> None:
        self._files = files
        self._pool = pool
        self._tree = tree
        self._book = book
        self._new_file_id = new_file_id
        self._count_max = count_max
        self._is_in_use = is_in_use
        # So many are looked through for some to close: not at each that is opened.
        self._crowded_at = count_max
        self._open: OrderedDict[StreamId, OpenQueue] = OrderedDict()
        # Open and with something staged, in the order in which that came.
        self.changed: dict[StreamId, OpenQueue] = {}

    def get(self, stream: StreamId) -> OpenQueue | None:
        queue = self._open.get(stream)
        if queue is not None:
            self._open.move_to_end(stream)
        return queue

    def load(self, stream: StreamId) -> OpenQueue | None:
        """Open a queue from its folder; None if it has none."""
        folder = self._tree.folder(stream)
        found = recover_queue(
            stream,
            folder,
            self._files,
            self._pool,
            self._new_file_id,
            is_suspect=self._tree.is_suspect,
        )
        self._tree.settle(folder)
        if found is None:
            return None
        self._book.add(found.damage)
        self._book.add_torn(found.torn_tails)
        queue = OpenQueue.recovered(stream, found)
        if len(self._open) >= self._crowded_at:
            self.close_unused()
        self.put(queue)
        return queue

    def put(self, queue: OpenQueue) -> None:
        self._open[queue.stream] = queue

    def drop(self, stream: StreamId) -> None:
        self._open.pop(stream, None)
        self.changed.pop(stream, None)

    def close_unused(self) -> None:
        """Forget the queues that were not asked for longest, unless something of them waits."""
        excess = len(self._open) - self._count_max
        if excess <= 0:
            return
        unused = (
            stream
            for stream, queue in self._open.items()
            if not queue.is_changed and not self._is_in_use(stream)
        )
        for stream in _first(unused, excess):
            del self._open[stream]
        self._crowded_at = len(self._open) + max(1, self._count_max // 8)


def _first(streams: Iterator[StreamId], count: int) -> list[StreamId]:
    return [stream for _, stream in zip(range(count), streams, strict=False)]
