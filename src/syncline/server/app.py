"""The router's life: listen, recover, serve, drain, close.

- The port is open while the store recovers, so that `/readyz` can say so; the API answers 503.
- SIGTERM and SIGINT stop it in order: not ready, waiting readers are sent home, WebSockets are told
  goodbye, open requests get their answers, what is staged becomes durable, the folder is let go of.
  A second signal does not wait for open requests.
- A failed device stops it at once, and nothing more is acknowledged.
"""

import asyncio
import gc
import resource
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from syncline.errors import ConfigError, StorageError
from syncline.server.api import Api
from syncline.server.clocks import CautiousClock, machine_clock
from syncline.server.committer import Committer
from syncline.server.config import check_token
from syncline.server.document_faces import open_documents
from syncline.server.documents import Documents
from syncline.server.events import Events, note_start
from syncline.server.gathering import WebSockets
from syncline.server.health import Health, Stage
from syncline.server.hot_backup import HotBackup
from syncline.server.housekeeping import Housekeeping
from syncline.server.listener import QuietServer, listen, make_server
from syncline.server.logs import Log
from syncline.server.metrics import Metrics
from syncline.server.open_files import left_to_stores_count
from syncline.server.queues import SESSION, Queues
from syncline.server.settings import Settings
from syncline.server.smp.assembly import Smp, Web, listen_for_smp, open_records
from syncline.server.tokens import Tokens
from syncline.storage.base import KeepsHistory, Store, TellsExpiry
from syncline.storage.copies import check_no_backup
from syncline.storage.files import DiskFiles
from syncline.storage.folder import read_format
from syncline.storage.inspection import BacksUp
from syncline.storage.life import Life, life_with_records, read_lives
from syncline.storage.opening import open_store
from syncline.values.events import Face

# New objects before rubbish in cycles is looked for; there is little of it (bench: documents).
_COLLECTION_OBJECT_COUNT = 10_000
# More than this the system does not leave free below the stack of a process.
_STACK_BYTES = 96 << 20

EXIT_STOPPED = 0
EXIT_DEVICE_FAILED = 3


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a person wants to know once the router serves."""

    url: str
    # None: all is kept in memory, and gone when the router stops.
    folder: str | None
    # None: they are being counted.
    stream_count: int | None
    damage_count: int
    # What SMP clients know it by; empty where SMP is off.
    smp_address: str = ""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What works on the store while the router serves."""

    store: Store
    committer: Committer
    queues: Queues
    housekeeping: Housekeeping
    documents: Documents | None
    smp: Smp | None


def read_token(settings: Settings) -> str:
    """The token, wherever it is kept. Raises ConfigError."""
    if not settings.http_token_file:
        return settings.http_token
    try:
        token = Path(settings.http_token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"http.token_file {settings.http_token_file} cannot be read") from error
    check_token(token, f"the token in {settings.http_token_file}")
    return token


class Router:
    """One process, one data folder, a port for HTTP and one for SMP."""

    def __init__(
        self,
        settings: Settings,
        log: Log,
        announce: Callable[[Announcement], None],
        pages: Mapping[str, tuple[str, bytes]] | None = None,
    ) -> None:
        self._settings = settings
        self._folder = str(Path(settings.store_folder).absolute())
        self._log = log
        self._announce = announce
        self._files = DiskFiles()
        self._health = Health()
        self._metrics = Metrics()
        self._clock = machine_clock()
        self._api = Api(settings, self._health, self._metrics, self._clock.steady_ms, pages)
        self._tokens = Tokens.from_settings(settings, self._clock.wall_ms)
        # Faces are registered here once the store is open; until then it turns everybody away.
        self._web_sockets = WebSockets(
            settings.websocket_limits(),
            origins=settings.websocket_origins,
            is_open=not settings.has_token_keys,
        )
        self._stop = asyncio.Event()

    @property
    def _serves_web_sockets(self) -> bool:
        settings = self._settings
        return settings.documents_enabled or (settings.smp_enabled and settings.smp_web_sockets)

    async def run(self) -> int:
        """Serve until told to stop; return the exit code. Raises SynclineError before it serves."""
        token = read_token(self._settings)
        listener, smp_listener = await self._listen_or_explain()
        server = make_server(
            self._api.app(token),
            connection_count_max=self._settings.http_connection_count_max,
            request_seconds_max=self._settings.http_request_seconds_max,
            stop_seconds_max=self._settings.upkeep_stop_seconds_max,
            web_sockets=self._web_sockets if self._serves_web_sockets else None,
        )
        self._catch_signals(server)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            store = await asyncio.to_thread(self._open_store)
            return await self._serve(store, server, serving, _url(listener), smp_listener)
        finally:
            server.should_exit = True
            await serving

    async def _listen_or_explain(self) -> tuple[socket.socket, socket.socket | None]:
        """A second router on the same folder has the same ports, or one of them, and should hear of
        the folder."""
        try:
            return self._listen()
        except ConfigError:
            store = await asyncio.to_thread(self._open_store)
            store.close()
            raise

    def _listen(self) -> tuple[socket.socket, socket.socket | None]:
        """For HTTP and, where it is on, for SMP: both or none. Raises ConfigError."""
        listener = listen(self._settings.http_host, self._settings.http_port)
        try:
            return listener, listen_for_smp(self._settings) if self._settings.smp_enabled else None
        except ConfigError:
            listener.close()
            raise

    def _open_store(self) -> Store:
        if self._settings.store_kind != "memory":
            check_no_backup(self._files, self._folder)
        options = self._settings.store_options()
        # What is left to the stores is for more than the files of queues.
        open_file_count_max = min(options.open_file_count_max, left_to_stores_count() // 2)
        return open_store(
            self._settings.store_kind,
            self._folder,
            self._files,
            replace(options, open_file_count_max=open_file_count_max),
            now_ms=self._clock.wall_ms(),
            random_bytes=secrets.token_bytes,
        )

    async def _serve(
        self,
        store: Store,
        server: QuietServer,
        serving: asyncio.Task[None],
        url: str,
        smp_listener: socket.socket | None,
    ) -> int:
        parts = await self._assemble(store, has_smp=smp_listener is not None)
        address = "" if smp_listener is None else self._start_smp(parts, server, smp_listener)
        _spare_collections()
        make_room_for_recursion()
        self._tell(store, url, address)
        failure = await self._until_stopped(parts)
        self._health.stage = Stage.DRAINING
        parts.queues.drain()
        server.should_exit = True
        if failure is not None:
            self._give_up(parts, server, failure)
            return EXIT_DEVICE_FAILED
        await self._close(parts, serving)
        return EXIT_STOPPED

    async def _assemble(self, store: Store, *, has_smp: bool) -> _Parts:
        """All that works on the store. From here on the API answers."""
        life = self._read_life(store)
        if isinstance(store, KeepsHistory):
            age_ms = self._settings.audit_archive_seconds_max * 1_000
            store.history_clock_ms = CautiousClock(self._clock, age_ms)
        committer = Committer.on_thread(store)
        queues = Queues(
            store,
            committer,
            self._clock.wall_ms,
            secrets.token_bytes,
            self._settings.queues_quota_default,
            self._begin_events(store, life),
        )
        smp = await self._open_smp(store, committer, queues) if has_smp else None
        housekeeping = self._keep_house(store, committer, queues)
        documents: Documents | None = None
        if self._settings.documents_enabled:
            documents = self._open_documents(store, committer, queues, life)
            housekeeping.on_relief.append(documents.patience.relieve)
        self._api.attach(queues, self._hot_backup(store, smp))
        return _Parts(store, committer, queues, housekeeping, documents, smp)

    def _keep_house(self, store: Store, committer: Committer, queues: Queues) -> Housekeeping:
        housekeeping = Housekeeping(
            store,
            committer,
            queues,
            self._free_bytes,
            self._settings,
            CautiousClock(self._clock, self._settings.queues_expire_after_seconds * 1_000),
            self._log,
            self._metrics,
        )
        self._metrics.watch(store, committer, self._free_bytes, lambda: queues.waiting_reader_count)
        # Before the first request: a disk that is nearly full takes none.
        housekeeping.watch_space()
        self._health.watch(store, committer, queues)
        return housekeeping

    def _hot_backup(self, store: Store, smp: Smp | None) -> HotBackup:
        records = None if smp is None else smp.records
        return HotBackup(
            store,
            self._files,
            self._folder,
            self._clock.wall_ms,
            records if isinstance(records, BacksUp) else None,
        )

    def _start_smp(self, parts: _Parts, server: QuietServer, listener: socket.socket) -> str:
        """Returns the address that clients know it by."""
        smp = parts.smp
        assert smp is not None
        parts.housekeeping.on_relief.append(smp.relieve)
        parts.housekeeping.on_beat.append(smp.keep_house)
        address = str(smp.start(smp.identity(), listener, Web(server, self._web_sockets)))
        self._api.smp.attach(smp.router, address, self._store_id())
        self._metrics.watch_smp(smp)
        return address

    def _tell(self, store: Store, url: str, smp_address: str) -> None:
        stats = store.stats()
        stream_count = stats.stream_count if stats.is_counted else None
        folder = None if self._settings.store_kind == "memory" else self._folder
        self._announce(Announcement(url, folder, stream_count, stats.damage_count, smp_address))
        self._log.info("serving", url=url, folder=folder, streams=stream_count)

    def _give_up(self, parts: _Parts, server: QuietServer, failure: StorageError) -> None:
        self._log.error("the device failed", message=str(failure))
        # Whatever a request waits for will not come.
        server.force_exit = True
        self._web_sockets.go_away()
        if parts.smp is not None:
            parts.smp.go_away()

    async def _close(self, parts: _Parts, serving: asyncio.Task[None]) -> None:
        await self._web_sockets.close_all(self._settings.upkeep_stop_seconds_max)
        # Before its port is closed: requests come over the port of SMP as well.
        await serving
        if parts.documents is not None:
            # What came in before the goodbye is stored.
            await parts.documents.checks.settled()
        if parts.smp is not None:
            await parts.smp.close()
        await parts.committer.close()
        parts.store.close()
        self._log.info("stopped")

    def _read_life(self, store: Store) -> Life | None:
        """That of a folder that was restored. Raises CorruptionError."""
        try:
            lives = read_lives(self._files, self._folder)
        except StorageError:
            store.close()
            raise
        return life_with_records(lives)

    def _begin_events(self, store: Store, life: Life | None) -> Events | None:
        """Note the start; return where the operator's API notes what it hands out."""
        is_wanted = self._settings.audit_events
        events = Events.of(store, self._clock.wall_ms, Face.HTTP, is_wanted=is_wanted)
        note_start(store, self._clock.wall_ms(), life, is_silent=not is_wanted)
        if events is not None:
            events.connected(SESSION)
            if isinstance(store, TellsExpiry):
                store.on_expired = events.expired
        return events

    def _open_documents(
        self, store: Store, committer: Committer, queues: Queues, life: Life | None
    ) -> Documents:
        documents = open_documents(
            self._web_sockets,
            self._settings,
            self._tokens,
            store,
            committer,
            self._clock,
            secrets.token_bytes,
            queues.pressure.set,
            b"" if life is None else life.seed,
            self._log,
        )
        self._metrics.watch_documents(documents)
        self._api.documents.attach(documents, committer)
        return documents

    async def _open_smp(self, store: Store, committer: Committer, queues: Queues) -> Smp:
        records = await asyncio.to_thread(
            open_records, self._settings, self._folder, self._files, self._log
        )
        return Smp(self._settings, store, committer, records, queues, self._clock, self._log)

    def _store_id(self) -> bytes | None:
        """What the folder is known by; a store in memory is not known for long."""
        if self._settings.store_kind == "memory":
            return None
        found = read_format(self._folder, self._files)
        return None if found is None else found.store_id

    def _free_bytes(self) -> int:
        # A store in memory has no folder, and no disk that could be full.
        if self._settings.store_kind == "memory":
            return sys.maxsize
        return self._files.free_bytes(self._folder)

    async def _until_stopped(self, parts: _Parts) -> StorageError | None:
        """Keep house until somebody says stop, or the device fails: then say how."""
        keeping = asyncio.create_task(parts.housekeeping.run())
        failing = [asyncio.create_task(parts.committer.failed())]
        if parts.smp is not None:
            failing.append(asyncio.create_task(parts.smp.failed()))
        stopping = asyncio.create_task(self._stop.wait())
        tasks: list[asyncio.Task[Any]] = [keeping, stopping, *failing]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in failing:
                if each.done():
                    return each.result()
            if keeping.done():
                return _storage_error(keeping)
            return None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _catch_signals(self, server: QuietServer) -> None:
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if self._stop.is_set():
                server.force_exit = True
                self._web_sockets.abort_all()
            self._stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)


def _spare_collections() -> None:
    """What is there by now stays; and what an update makes goes away without a collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTION_OBJECT_COUNT)


def make_room_for_recursion() -> None:
    """The library that folds Yjs documents deletes nested types by recursion, in this thread, and
    a full stack ends the process. The system gives the main thread more only as it is used."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = _STACK_BYTES if hard == resource.RLIM_INFINITY else min(_STACK_BYTES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))


def _storage_error(keeping: asyncio.Task[None]) -> StorageError:
    """Why housekeeping ended; what is no failure of the disk is a mistake and goes on."""
    error = keeping.exception()
    assert error is not None, "housekeeping goes on until it is cancelled"
    cause = _first_cause(error)
    if isinstance(cause, StorageError):
        return cause
    raise cause


def _first_cause(error: BaseException) -> BaseException:
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)
    return _first_cause(group.exceptions[0])


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
