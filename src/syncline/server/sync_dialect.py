"""What readers of `/sync` are told of updates. The protocol is docs/formats/sync.md."""

from syncline.server.frames import frame
from syncline.server.open_document import OpenDocument
from syncline.values.updates import Update
from syncline.wire import sync_bodies
from syncline.wire.sync import encode_epoch, encode_server, encode_shared
from syncline.wire.sync_bodies import Encoding
from syncline.wire.sync_messages import Mutation, Receipt


class SyncDialect:
    """What readers of `/sync` are told of updates, in one encoding."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding: Encoding = encoding
        self._is_text = encoding == "json"
        # All readers of an update are told one after the other; only their epochs differ.
        self._last: Update | None = None
        self._head = b""

    def update(self, document: OpenDocument, epoch: int, update: Update) -> bytes:
        if update is not self._last:
            self._last, self._head = update, self._shared(document, update)
        return frame(self._head + encode_epoch(epoch, self._encoding), is_text=self._is_text)

    def _shared(self, document: OpenDocument, update: Update) -> bytes:
        message = Mutation(
            document=document.name,
            seq=update.seq,
            client=update.author,
            clock=update.clock,
            mutation=sync_bodies.write_mutation(update.body, document.kind, self._encoding),
            epoch=0,
        )
        return encode_shared(message, self._encoding)

    def stored(self, document: OpenDocument, epoch: int, update: Update) -> bytes:
        message = Receipt(document=document.name, clock=update.clock, seq=update.seq, epoch=epoch)
        return frame(encode_server(message, self._encoding), is_text=self._is_text)
