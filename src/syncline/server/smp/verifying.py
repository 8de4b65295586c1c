"""Who may do what: the party that a command comes from is found and checked before anything else.

The order of the checks is part of the protocol, since the first that fails is told:

    beside the command   too much or too little of authorization and entity   CMD NO_AUTH, ...
    entity               unknown                                               AUTH
    role                 not that of the service that the session speaks for   CMD PROHIBITED
    service signature    missing, wrong or out of place                        SERVICE
    authorization        missing, wrong or not needed                          AUTH

How long a refusal takes depends on what was presented alone, not on what is on record: where there
is no key to check an authorization with, it is checked with one that is nobody's.

In a session of a service NEW, SUB and NSUB carry two authorizations. The service's is made over the
command, the queue's over the hash of the service's certificate and the command: whoever holds the
queue's key has agreed to this service and no other.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NoReturn

from syncline.server.smp.calls import Call
from syncline.server.smp.faces import SessionService
from syncline.storage.records.base import Records
from syncline.values.ids import STREAM_ID_BYTES
from syncline.values.queue_records import QueueRecord, ServiceRole
from syncline.wire.smp import failures
from syncline.wire.smp.authorizations import is_authorized, is_signed, kind_of, refuse_slowly
from syncline.wire.smp.commands import New, Nsub, Sub, credentials_fault, role_of
from syncline.wire.smp.failures import FailureError
from syncline.wire.smp.keys import PublicKey

# Of parties that were heard lately; some 300 bytes each.
_KEY_COUNT_MAX: Final = 4_096


class Verifier:
    """Every method raises FailureError with what the command is answered with."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def check_credentials(self, call: Call) -> None:
        """What every command needs beside it, before anything is looked for."""
        transmission = call.transmission
        fault = credentials_fault(
            call.command, bool(transmission.authorization), bool(transmission.entity_id)
        )
        if fault is not None:
            raise FailureError(fault)

    def anybody(self, call: Call) -> None:
        """No queue is named, and nothing authorizes."""
        _check_role(call)

    def creator(self, call: Call, key: PublicKey) -> None:
        """Holds the key that the command itself brings."""
        _check(call, (key,))

    def recipient(self, call: Call) -> QueueRecord:
        entity_id = call.transmission.entity_id
        record = self._records.queue(entity_id) if _is_id(entity_id) else None
        if record is None:
            _refuse_unknown(call)
        _check(call, [_key(key) for key in record.recipient_keys])
        return record

    def sender(self, call: Call) -> QueueRecord:
        """Anybody while the queue is not secured, and only who has its key afterwards."""
        record = self._by_sender(call)
        _check(call, (_key(record.sender_key),) if record.sender_key else ())
        return record

    def securing_sender(self, call: Call, key: PublicKey) -> QueueRecord:
        record = self._by_sender(call)
        _check(call, (key,))
        return record

    def link(self, call: Call, key: PublicKey | None) -> QueueRecord:
        """`key`: that with which the sender secures the queue; None: it only looks."""
        entity_id = call.transmission.entity_id
        record = self._records.by_link(entity_id) if _is_id(entity_id) else None
        if record is None:
            _refuse_unknown(call)
        _check(call, () if key is None else (key,))
        return record

    def notifier(self, call: Call) -> QueueRecord:
        entity_id = call.transmission.entity_id
        record = self._records.by_notifier(entity_id) if _is_id(entity_id) else None
        if record is None or record.notifier is None:
            _refuse_unknown(call)
        _check(call, (_key(record.notifier.key),))
        return record

    def service(self, call: Call) -> SessionService:
        """The service itself, with the key of this session and in its own name."""
        _check_role(call)
        service, transmission = call.session.service, call.transmission
        if (
            service is None
            or transmission.service_signature is not None
            or transmission.entity_id != service.service_id
            or not is_signed(service.key, transmission.authorization, transmission.signed)
        ):
            raise FailureError(failures.SERVICE)
        return service

    def owner_of_set(self, call: Call) -> SessionService:
        """The same, if it is a service that ids can belong to."""
        service = self.service(call)
        if service.role is ServiceRole.PROXY:
            raise FailureError(failures.PROHIBITED)
        if self._records.service(service.service_id) is None:
            # An operator has deleted it since the session began.
            raise FailureError(failures.SERVICE)
        return service

    def _by_sender(self, call: Call) -> QueueRecord:
        entity_id = call.transmission.entity_id
        record = self._records.by_sender(entity_id) if _is_id(entity_id) else None
        if record is None:
            _refuse_unknown(call)
        return record


def _check(call: Call, keys: Sequence[PublicKey]) -> None:
    """One of the keys authorizes the command; without keys it must not be authorized."""
    session, transmission = call.connection.session, call.transmission
    data = transmission.signed
    if session.service is not None:
        _check_role(call)
        data = _check_service(call)
    elif transmission.service_signature is not None:
        raise FailureError(failures.SERVICE)
    authorization = transmission.authorization
    if not keys and not authorization:
        return
    kind = kind_of(authorization)
    has_fitting = False
    for key in keys:
        if key.kind is kind:
            has_fitting = True
            if is_authorized(
                key, authorization, data, transmission.corr_id, session.router_private
            ):
                return
    if not has_fitting:
        _refuse_authorization(call)
    raise FailureError(failures.AUTH)


def _check_role(call: Call) -> None:
    service = call.session.service
    if service is not None and role_of(call.command) not in (None, service.role):
        raise FailureError(failures.PROHIBITED)


def _check_service(call: Call) -> bytes:
    """Check the second signature; what the first is made over."""
    transmission = call.transmission
    service = _second_signer(call)
    if service is None:
        if transmission.service_signature is not None:
            raise FailureError(failures.SERVICE)
        return transmission.signed
    if not _is_signed_by(service, call):
        raise FailureError(failures.SERVICE)
    return service.certificate_hash + transmission.signed


def _second_signer(call: Call) -> SessionService | None:
    """The service that has to sign this command as well."""
    service = call.session.service
    if service is None or not isinstance(call.command, (New, Sub, Nsub)):
        return None
    return service


def _is_signed_by(service: SessionService, call: Call) -> bool:
    signature = call.transmission.service_signature
    return signature is not None and is_signed(service.key, signature, call.transmission.signed)


def _refuse_unknown(call: Call) -> NoReturn:
    service = _second_signer(call)
    if service is not None:
        _is_signed_by(service, call)
    _refuse_authorization(call)


def _refuse_authorization(call: Call) -> NoReturn:
    transmission = call.transmission
    refuse_slowly(
        transmission.authorization,
        transmission.signed,
        transmission.corr_id,
        call.session.router_private,
    )
    raise FailureError(failures.AUTH)


@lru_cache(maxsize=_KEY_COUNT_MAX)
def _key(encoded: bytes) -> PublicKey:
    """A key on record. Read once and kept: it stands there as it will be asked for again."""
    return PublicKey.decode(encoded)


def _is_id(entity_id: bytes) -> bool:
    return len(entity_id) == STREAM_ID_BYTES
