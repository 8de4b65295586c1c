"""SOKS in an extended session: the set as it is on record, and how to find out what differs.

If the client told the same set, that is all. If not, the answer waits until the worker has made an
opening, from which the client can read most differences at once. What the session is told about its
subscriptions meanwhile comes behind the answer, and so does the fold: nobody hears that it has lost
a service before it hears that it has it.

An opening is a kindness. Where it fails, takes too long or would be one too many, SOKS goes without
and the client asks.
"""

import asyncio
from collections.abc import Callable
from functools import partial

from syncline.errors import StorageError
from syncline.server.smp.calls import Call
from syncline.server.smp.faces import SessionService
from syncline.server.smp.parts import Parts
from syncline.server.smp.reconciling import Reconciling, state_on_record
from syncline.server.smp.replies import refusal
from syncline.server.smp.tasks import Tasks
from syncline.values.digests import SetDigest
from syncline.values.reconciliation import SetHashes
from syncline.wire.smp.commands import Nsubs, Subs
from syncline.wire.smp.messages import Err, Soks


class Openings:
    """See the module."""

    def __init__(self, parts: Parts, reconciling: Reconciling, tasks: Tasks) -> None:
        self._parts = parts
        self._reconciling = reconciling
        self._tasks = tasks

    def answer(
        self,
        call: Call,
        service: SessionService,
        command: Subs | Nsubs,
        then: Callable[[], object],
        *,
        is_new: bool,
    ) -> None:
        """Once everything before it is durable; `then` happens behind the answer."""
        settle = partial(self._settle, call, service.service_id, command, then, is_new=is_new)
        in_order = partial(self._parts.connections.in_order, call.connection, settle)
        self._reconciling.when_durable(call, in_order)

    def _settle(
        self,
        call: Call,
        service_id: bytes,
        command: Subs | Nsubs,
        then: Callable[[], object],
        *,
        is_new: bool,
    ) -> None:
        try:
            digest = self._parts.outside.records.digest(service_id)
        except StorageError as error:
            self._send(call, refusal(error), then)
            return
        self._parts.counters.count_bulk(
            command.count, command.ids_hash, digest, command.hashes, is_new=is_new
        )
        if is_same(command, digest) or not self._reconciling.has_room(service_id):
            self._send(call, soks_of(digest), then)
            return
        self._parts.connections.hold_back(call.connection)
        self._tasks.start(self._open(call, service_id, command, then), "opening")

    async def _open(
        self,
        call: Call,
        service_id: bytes,
        command: Subs | Nsubs,
        then: Callable[[], object],
    ) -> None:
        try:
            opening = await self._made(service_id, command)
            digest = self._parts.outside.records.digest(service_id)
            self._send(call, soks_of(digest, opening), then)
        except StorageError as error:
            self._send(call, refusal(error), then)
        finally:
            self._parts.connections.go_on(call.connection)

    async def _made(self, service_id: bytes, command: Subs | Nsubs) -> bytes:
        """Empty if there is none to be had."""
        try:
            async with asyncio.timeout(self._parts.outside.options.opening_seconds_max):
                return await self._opening(service_id, command)
        except (StorageError, TimeoutError) as error:
            self._parts.counters.openings_failed_count += 1
            self._parts.outside.log.warning("an opening could not be made", reason=str(error))
            return b""

    async def _opening(self, service_id: bytes, command: Subs | Nsubs) -> bytes:
        """Empty if the sets are the same: then the digest on record was wrong."""
        records = self._parts.outside.records
        if _is_same_but_for_md5(command, records.digest(service_id)):
            await self._reconciling.check_digest(service_id)
            if is_same(command, records.digest(service_id)):
                return b""
        opening = await self._reconciling.opening(service_id)
        if is_same(command, records.digest(service_id)):
            return b""
        self._parts.counters.openings_count += 1
        return opening

    def _send(self, call: Call, answer: Soks | Err, then: Callable[[], object]) -> None:
        self._reconciling.send(call, answer)
        then()
        self._parts.connections.tell_effects()


def soks_of(digest: SetDigest, opening: bytes = b"") -> Soks:
    return Soks(digest.count, digest.xor_md5, state_on_record(digest), opening)


def is_same(told: Subs | Nsubs, digest: SetDigest) -> bool:
    """Whether the client told the set that is on record."""
    return _is_same_but_for_md5(told, digest) and told.ids_hash == digest.xor_md5


def _is_same_but_for_md5(told: Subs | Nsubs, digest: SetDigest) -> bool:
    hashes = SetHashes(digest.xor_xxh3, digest.sum128)
    return told.count == digest.count and told.hashes == hashes
