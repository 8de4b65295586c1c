"""Builds batches: records get their position when staged, headers and slot images when closed."""

from dataclasses import dataclass, field

from syncline.storage.files import File
from syncline.storage.log.format import (
    ACK_ROW,
    ACK_ROW_BYTES,
    BATCH_HEADER_BYTES,
    BLOCK_BYTES,
    CRC,
    NO_STREAM,
    QUOTA_BITS,
    RECORD_BODY,
    RECORD_HEADER_BYTES,
    UNREAD_BITS,
    RecordKind,
    checksum_seed,
    crc32c_extend,
    encode_batch_header,
)
from syncline.storage.log.scan import Chain
from syncline.storage.log.streams import LENGTH_BITS, OpenStream

# Below this mean size of a piece one joined write costs less than a long list of pieces.
_JOIN_PIECE_BYTES = 2048


@dataclass(slots=True, eq=False)
class StagedBatch:
    """Records of one write. The owner fills and closes it, then another thread may write it."""

    position: int
    epoch: int
    # Bytes of records that may be added before the segment or the cap ends.
    length_max: int
    # Prepared file that becomes this batch's segment; empty if the segment is there already.
    spare_path: str = ""
    length: int = 0
    pieces: list[bytes] = field(default_factory=list[bytes])
    crcs: list[int] = field(default_factory=list[int])
    streams: list[OpenStream] = field(default_factory=list[OpenStream])
    # Streams created less streams deleted.
    stream_count_change: int = 0
    chain: Chain | None = None
    images: list[tuple[OpenStream, bytes]] = field(default_factory=list[tuple[OpenStream, bytes]])
    file: File | None = None

    @property
    def byte_count(self) -> int:
        """What the write will take on disk, whole blocks."""
        return -(-(BATCH_HEADER_BYTES + self.length) // BLOCK_BYTES) * BLOCK_BYTES

    @property
    def record_count(self) -> int:
        return len(self.crcs)

    @property
    def end(self) -> int:
        return self.position + self.byte_count

    @property
    def padding(self) -> int:
        return self.byte_count - BATCH_HEADER_BYTES - self.length

    def add(self, opened: OpenStream, kind: int, now_ms: int, payload: bytes) -> int:
        """Stage a record with the image of its stream as it is now; return its place."""
        length = len(payload)
        position = self.position + BATCH_HEADER_BYTES + self.length
        next_seq = opened.next
        body = RECORD_BODY.pack(
            (kind | opened.flags) << 24 | length,
            opened.stream,
            (next_seq - 1) << UNREAD_BITS | (next_seq - opened.first),
            now_ms << QUOTA_BITS | opened.quota,
        )
        crc = crc32c_extend(crc32c_extend(checksum_seed(position, self.epoch), body), payload)
        self.pieces.append(CRC.pack(crc) + body)
        if length:
            self.pieces.append(payload)
        self.crcs.append(crc)
        self.length += RECORD_HEADER_BYTES + length
        if opened.batch is not self:
            self.touch(opened)
        return position << LENGTH_BITS | length

    def touch(self, opened: OpenStream) -> None:
        """Its slot is written once this batch is durable."""
        if opened.batch is not self:
            opened.batch = self
            opened.pending_count += 1
            self.streams.append(opened)

    def add_acknowledgements(self, streams: list[OpenStream], now_ms: int) -> None:
        """Stage rows for streams whose `first` moved."""
        rows = b"".join(
            ACK_ROW.pack(o.stream, (o.next - 1) << UNREAD_BITS | (o.next - o.first))
            for o in streams
        )
        position = self.position + BATCH_HEADER_BYTES + self.length
        body = RECORD_BODY.pack(
            RecordKind.ACKNOWLEDGEMENTS << 24 | len(rows), NO_STREAM, 0, now_ms << QUOTA_BITS
        )
        crc = crc32c_extend(crc32c_extend(checksum_seed(position, self.epoch), body), rows)
        self.pieces.append(CRC.pack(crc) + body)
        self.pieces.append(rows)
        self.crcs.append(crc)
        self.length += RECORD_HEADER_BYTES + len(rows)
        for opened in streams:
            self.touch(opened)

    def ack_row_room(self, length: int) -> int:
        """How many rows of acknowledgements fit into `length` bytes."""
        return max(0, (length - RECORD_HEADER_BYTES) // ACK_ROW_BYTES)

    def close(self, after: Chain, time_ms: int) -> Chain:
        """Nothing more is added: make the header and the images of all touched slots."""
        number = after.number + 1
        header, crc = encode_batch_header(
            self.epoch, number, self.position, time_ms, self.length, self.crcs, after.crc
        )
        self.pieces.insert(0, header)
        # Whole blocks: no block has to be read before it is written, and old remains are covered.
        if self.padding:
            self.pieces.append(bytes(self.padding))
        end = self.end
        self.images = [(opened, opened.image(end)) for opened in self.streams]
        for opened in self.streams:
            opened.batch = None
        self.chain = Chain(number, crc, self.epoch)
        return self.chain

    def write_pieces(self) -> list[bytes]:
        if self.byte_count // len(self.pieces) < _JOIN_PIECE_BYTES:
            return [b"".join(self.pieces)]
        return self.pieces
