"""Puts the queues together: records, the router of commands, and the listener that leads to it."""

import asyncio
import secrets
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from syncline.certificates import (
    ROUTER_CHAIN_COUNT_MIN,
    Identity,
    check_chain,
    make_identity,
    open_identity,
)
from syncline.errors import ConfigError, MalformedMessageError, StorageError, StoreFullError
from syncline.server.clocks import CautiousClock, Clock
from syncline.server.committer import Committer
from syncline.server.events import Events
from syncline.server.gathering import WebSockets
from syncline.server.listener import BoundedConnection, QuietServer, listen
from syncline.server.logs import Log
from syncline.server.origins import is_loopback
from syncline.server.queues import Queues
from syncline.server.settings import Settings
from syncline.server.smp.addressing import certificate_folder, router_address
from syncline.server.smp.bounds import TransportLimits, TransportStats
from syncline.server.smp.digest_repairs import tell_repair
from syncline.server.smp.expiring import ExpiryWalk
from syncline.server.smp.forwarding import Forwarding
from syncline.server.smp.greeting import Host
from syncline.server.smp.options import SmpOptions
from syncline.server.smp.parts import Surroundings
from syncline.server.smp.proxy_targets import Resolver, Targets, reach_of
from syncline.server.smp.proxying import Proxying, ProxyOptions, connecting
from syncline.server.smp.router import SmpRouter
from syncline.server.smp.session import Sessions
from syncline.server.smp.silence import SilenceWatch
from syncline.server.smp.tasks import Tasks
from syncline.server.smp.tls_transport import http_face
from syncline.server.smp.transport import HttpFace, SmpListener
from syncline.server.smp.walking import DigestWalk
from syncline.server.smp.web_socket import PATH, SmpFace
from syncline.server.smp.web_socket import limits_of as web_socket_limits_of
from syncline.storage.base import Store
from syncline.storage.files import Files
from syncline.storage.records.base import Records
from syncline.storage.records.memory import MemoryRecords
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.events import Face
from syncline.wire.smp.addresses import RouterAddress

# How often in its time a silent session is looked at.
_LOOKS_PER_SILENCE = 8
_RENEWAL_DUE = timedelta(days=30)
_CHECKPOINT_SECONDS = 5.0
_HOUR_SECONDS = 3_600.0


def open_records(settings: Settings, folder: str, files: Files, log: Log) -> Records:
    """Beside the messages, wherever these are. Raises StorageError."""
    if settings.store_kind == "memory":
        return MemoryRecords.open(folder, files)
    records = SqliteRecords.open(folder, files)
    if settings.smp_recompute_digests:
        try:
            _recompute_digests(records, log)
        except BaseException:
            records.close()
            raise
    return records


def _recompute_digests(records: Records, log: Log) -> None:
    repaired = records.repair_digests()
    for mismatch in repaired:
        tell_repair(mismatch, log)
    log.info(
        "all digests were recomputed",
        services=records.counts().service_count,
        repaired=len(repaired),
    )


def options_of(settings: Settings) -> SmpOptions:
    return SmpOptions(
        creates_queues=settings.smp_takes_new_queues,
        password=settings.smp_create_password,
        quota=settings.smp_quota,
        expire_after_ms=settings.smp_expire_after_seconds * 1_000,
        creates_services=settings.smp_services,
        service_count_max=settings.smp_service_count_max,
    )


def limits_of(settings: Settings) -> TransportLimits:
    return TransportLimits(
        connection_count_max=settings.smp_connection_count_max,
        connections_per_address_max=settings.smp_connections_per_address_max,
        hello_seconds_max=settings.smp_handshake_seconds_max,
        waiting_bytes_high=settings.smp_waiting_bytes_max,
        waiting_bytes_low=settings.smp_waiting_bytes_max // 4,
        all_waiting_bytes_max=settings.smp_all_waiting_bytes_max,
        slow_seconds_max=settings.smp_slow_seconds_max,
        close_seconds_max=settings.upkeep_stop_seconds_max,
    )


def proxy_options_of(settings: Settings) -> ProxyOptions:
    return ProxyOptions(
        reach=reach_of(settings),
        password=settings.smp_create_password,
        connection_count_max=settings.smp_proxy_connection_count_max,
    )


def open_forwarding(settings: Settings, resolver: Resolver, log: Log) -> Forwarding:
    options = proxy_options_of(settings)
    connect = connecting(Targets(options.reach, resolver.resolve), options.link_options())
    return Forwarding(Proxying(options, connect, Tasks(log), time.monotonic, secrets.token_bytes))


def serves_requests_over_tls(settings: Settings) -> bool:
    """Whether the port of SMP is as well guarded as that of HTTP has to be.

    If not, SMP over WebSockets is all that is served there: what has no token of its own must not
    be reached from other machines by way of another port.
    """
    if is_loopback(settings.smp_host):
        return True
    has_token = bool(settings.http_token or settings.http_token_file)
    has_open_documents = settings.documents_enabled and not settings.has_token_keys
    return settings.http_allow_remote and has_token and not has_open_documents


@dataclass(frozen=True, slots=True)
class Web:
    """What SMP over WebSockets is served by, and what the port of SMP serves HTTP with."""

    server: QuietServer
    sockets: WebSockets


def listen_for_smp(settings: Settings) -> socket.socket:
    """Raises ConfigError."""
    return listen(settings.smp_host, settings.smp_port, "smp.host", "--smp-port")


class Smp:
    """All of SMP in a process, from `start` to `close`. Lives in the event loop of the store."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        committer: Committer,
        records: Records,
        queues: Queues,
        clock: Clock,
        log: Log,
    ) -> None:
        self.records = records
        self.committer = Committer.on_thread(records)
        self.stats = TransportStats()
        self._settings = settings
        self._log = log
        self._tasks = Tasks(log)
        self._listener: SmpListener | None = None
        # Batches of the records whose refusal was reported.
        self._refused_count = 0
        self._resolver = Resolver()
        self.forwarding = open_forwarding(settings, self._resolver, log)
        cautious_ms = CautiousClock(clock, settings.smp_expire_after_seconds * 1_000)
        self.router = SmpRouter(
            Surroundings(
                store=store,
                committer=committer,
                records=records,
                records_committer=self.committer,
                clock_ms=clock.wall_ms,
                steady_ms=clock.steady_ms,
                cautious_ms=cautious_ms,
                random_bytes=secrets.token_bytes,
                options=options_of(settings),
                log=log,
                events=Events.of(store, clock.wall_ms, Face.SMP, is_wanted=settings.audit_events),
                shortage=lambda: queues.shortage,
                press=queues.pressure.set,
            ),
            self.forwarding,
        )
        self.forwarding.attach(self.router)
        self._silence = SilenceWatch(
            settings.smp_idle_seconds_max, self.router.is_session_subscribed
        )
        self._expiry = ExpiryWalk(store, records, self.router.expire, cautious_ms, log)
        self._walk = DigestWalk(
            records,
            self.router.counters,
            settings.smp_walk_hours * _HOUR_SECONDS,
            secrets.token_bytes,
            log,
        )

    def identity(self) -> Identity:
        """Made at the first start. Raises ConfigError."""
        now = datetime.now(UTC)
        if self._settings.store_kind == "memory" and not self._settings.smp_certificate_folder:
            # Nothing of this router is kept, and its address is not either.
            return make_identity(now)
        identity = open_identity(certificate_folder(self._settings), now)
        try:
            check_chain(identity.chain, now, count_min=ROUTER_CHAIN_COUNT_MIN)
        except MalformedMessageError as error:
            raise ConfigError(
                f"the certificates for SMP cannot be used: {error}; `syncline certificate renew` "
                "makes a new leaf"
            ) from error
        if identity.leaf_until - now < _RENEWAL_DUE:
            self._log.warning("renew the leaf certificate", until=identity.leaf_until.isoformat())
        return identity

    def start(
        self, identity: Identity, listening: socket.socket, web: Web | None = None
    ) -> RouterAddress:
        """Let clients in; the address that they know the router by."""
        loop = asyncio.get_running_loop()
        transport_limits = limits_of(self._settings)
        sessions = Sessions(self.router, transport_limits, self.stats, loop)
        host = Host(identity, sessions, self._tasks, lambda: datetime.now(UTC), secrets.token_bytes)
        face = self._open_web(web, host) if web and self._settings.smp_web_sockets else None
        self._listener = SmpListener(host, transport_limits, self.stats, loop, face)
        self._listener.start([listening])
        if self._settings.smp_expire_after_seconds:
            self._tasks.start(self._expiry.run(), "expiry of messages")
        self._tasks.start(self._bring_in_changes(), "checkpoints of the records")
        if self._settings.smp_walk_hours:
            self._tasks.start(self._walk.run(), "comparison of sets and digests")
        if self._settings.smp_idle_seconds_max:
            self._tasks.start(self._watch_silence(sessions), "silent sessions")
        port = int(listening.getsockname()[1])
        return router_address(self._settings, identity.fingerprint, port)

    def _open_web(self, web: Web, host: Host) -> HttpFace:
        settings = self._settings
        face = SmpFace(host, settings.smp_handshake_seconds_max)
        limits = web_socket_limits_of(settings)
        web.sockets.register(PATH, face.accept, limits=limits, is_for_all=True)
        serves_requests = serves_requests_over_tls(settings)

        def make_connection() -> BoundedConnection:
            made = web.server.connection()
            if not serves_requests:
                made.serve_only_what_is_for_all()
            return made

        return http_face(make_connection, asyncio.get_running_loop())

    async def _bring_in_changes(self) -> None:
        """Or else some batch would have to, and everybody behind it would wait for that."""
        batch_count = 0
        while True:
            await asyncio.sleep(_CHECKPOINT_SECONDS)
            if self.committer.stats.batch_count != batch_count:
                batch_count = self.committer.stats.batch_count
                try:
                    await asyncio.to_thread(self.records.checkpoint)
                except StorageError as error:
                    # They are durable where they are; the next time may go better.
                    self._log.warning("changes cannot be brought in", reason=str(error))

    async def _watch_silence(self, sessions: Sessions) -> None:
        seconds = max(1.0, self._settings.smp_idle_seconds_max / _LOOKS_PER_SILENCE)
        while True:
            await asyncio.sleep(seconds)
            self._silence.look(sessions, time.monotonic())

    # Housekeeping of the process.

    def relieve(self) -> None:
        self.router.relieve()

    def keep_house(self) -> None:
        self.router.keep_house()
        self.forwarding.keep_house()
        refused_count = self.committer.stats.refused_batch_count
        if refused_count != self._refused_count:
            self._log.warning(
                "changes of queues and services were refused",
                batches=refused_count - self._refused_count,
            )
            self._refused_count = refused_count

    # Ending.

    def go_away(self) -> None:
        """At once: nothing that anybody waits for will come."""
        if self._listener is not None:
            self._listener.stop_accepting()
            self._listener.abort()

    async def close(self) -> None:
        """In order: say goodbye, finish what is staged, let go of the records."""
        if self._listener is not None:
            await self._listener.close()
        self._resolver.close()
        await self.forwarding.close()
        await self._tasks.close()
        await self.router.close()
        try:
            try:
                await self.committer.close()
            finally:
                self.records.close()
        except StoreFullError as error:
            # Nobody was told of these. What is left to be closed has more to lose.
            self._log.warning("the last changes were refused", reason=str(error))

    async def failed(self) -> StorageError:
        return await self.committer.failed()
