"""Letters: what a sender writes for a recipient's eyes only, in an envelope, to a queue's address.

A sender keeps two keys for each address: one that secures the queue, so that nobody else can send
to it, and one that envelopes are sealed with. Both are in the store before the router hears of one.
"""

import secrets
from dataclasses import replace

from syncline.client.smp import queues
from syncline.client.smp.agent_records import StoredQueue, StoredSender
from syncline.client.smp.agent_store import AgentStore
from syncline.client.smp.envelopes import Envelope, open_envelope, seal_envelope
from syncline.client.smp.queue_uris import QueueUri
from syncline.client.smp.queues import Asking
from syncline.client.smp.store_turns import StoreTurns
from syncline.errors import MalformedMessageError, NotAuthorizedError
from syncline.links.private_keys import Entropy, PrivateKey
from syncline.values.queue_records import QueueMode
from syncline.wire.smp import failures
from syncline.wire.smp.boxes import NONCE_BYTES
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.keys import KeyKind, PublicKey


def address_of(store: AgentStore, queue: StoredQueue) -> QueueUri:
    """What to give to a sender. Raises MalformedMessageError for a queue without an envelope."""
    if queue.envelope_key is None:
        raise MalformedMessageError(f"queue {queue.name!r} has no key for letters")
    router = replace(store.address(queue.account.server_id), password=None)
    return QueueUri(router, queue.sender_id, queue.envelope_key.public, queue.mode)


async def send_letter(
    link: Asking,
    store: AgentStore,
    user_id: int,
    to: QueueUri,
    data: bytes,
    *,
    entropy: Entropy = secrets.token_bytes,
) -> None:
    """Stored at the router when this returns. Raises NotAuthorizedError if the queue takes nothing
    from us, LimitExceededError if it is too long, and FailureError for other refusals."""
    sender = store.sender(user_id, str(to))
    if sender is None:
        sender = StoredSender(
            user_id,
            str(to),
            PrivateKey.new(KeyKind.ED25519, entropy),
            PrivateKey.new(KeyKind.X25519, entropy),
        )
        await StoreTurns(store).write(store.save_sender, sender)
    # With its key in each of them, letters can be read in any order, and if some are lost.
    letter = Envelope(data, sender.envelope_key.public)
    body = seal_envelope(letter, sender.envelope_key, to.dh_key, entropy(NONCE_BYTES))
    try:
        key = await _secured(link, store, sender, to)
        await queues.send(link, to.sender_id, body, key)
    except FailureError as error:
        if error.failure != failures.AUTH:
            raise
        raise NotAuthorizedError(
            "the queue takes nothing from us: it was deleted, or somebody else sends to it"
        ) from error


async def _secured(
    link: Asking, store: AgentStore, sender: StoredSender, to: QueueUri
) -> PrivateKey | None:
    """The key to send with. A contact address takes letters from anybody."""
    if to.mode is QueueMode.CONTACT:
        return None
    if not sender.is_secured:
        await queues.secure_as_sender(link, to.sender_id, sender.key)
        await StoreTurns(store).write(store.save_sender, replace(sender, is_secured=True))
    return sender.key


def open_letter(store: AgentStore, queue: StoredQueue, body: bytes) -> bytes:
    """What the sender wrote. Raises MalformedMessageError for what is no letter to this queue.

    The key of a sender is stored, and durable, when this returns: that waits for the disk, with the
    first letter of each, and may be done on a thread.
    """
    if queue.envelope_key is None:
        raise MalformedMessageError(f"queue {queue.name!r} has no key for letters")
    known = None if queue.sender_dh is None else PublicKey(KeyKind.X25519, queue.sender_dh)
    envelope = open_envelope(body, queue.envelope_key, known)
    found = envelope.sender_dh
    is_one_senders = queue.mode is QueueMode.MESSAGING
    if is_one_senders and found is not None and found != known:
        store.save_sender_dh(queue, found.raw)
    return envelope.data
