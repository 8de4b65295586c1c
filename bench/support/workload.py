"""Made-up messages, ready before any clock starts.

Bodies are random bytes, so no store gains by compressing them. A pool of distinct bodies is used in
turns: the pool is far larger than the window of any compressor here.
"""

import random
from dataclasses import dataclass
from hashlib import blake2b

QUEUE_ID_BYTES = 24
_POOL_BYTES = 32 * 1024 * 1024
_POOL_COUNT_MAX = 4096

Message = tuple[bytes, bytes]  # queue id, body


@dataclass(frozen=True, slots=True)
class Workload:
    queue_ids: list[bytes]
    bodies: list[bytes]
    seed: int

    @classmethod
    def make(cls, queue_count: int, body_bytes: int, seed: int = 1) -> "Workload":
        chance = random.Random(seed)
        body_count = max(1, min(_POOL_COUNT_MAX, _POOL_BYTES // body_bytes))
        return cls(
            [queue_id(index) for index in range(queue_count)],
            [chance.randbytes(body_bytes) for _ in range(body_count)],
            seed,
        )

    def batches(self, message_count: int, in_flight: int) -> list[list[Message]]:
        """`message_count` messages to random queues, in lists of `in_flight`."""
        chosen = random.Random(self.seed + 1).choices(self.queue_ids, k=message_count)
        bodies, body_count = self.bodies, len(self.bodies)
        messages = [(queue, bodies[n % body_count]) for n, queue in enumerate(chosen)]
        return [messages[n : n + in_flight] for n in range(0, message_count, in_flight)]


def queue_id(index: int) -> bytes:
    """As random as a real id, and any process can make it again from the index."""
    return blake2b(index.to_bytes(8, "big"), digest_size=QUEUE_ID_BYTES).digest()
