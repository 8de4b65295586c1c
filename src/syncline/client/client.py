"""A client of the sync protocol: one connection, any number of documents."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Literal

from syncline.client.changes import CHANGE_COUNT_MAX
from syncline.client.closing import error_of
from syncline.client.document import Document
from syncline.client.engine import Engine
from syncline.client.link import LinkRunner, LinkSettings, sync_url
from syncline.client.messages import Identity
from syncline.client.tokens import TokenSource
from syncline.client.yjs import yjs_fold
from syncline.core.folds import Fold, JsonFold, UpdateFold
from syncline.core.replicas import ATTEMPT_COUNT_MAX, Link
from syncline.errors import (
    ConfigError,
    LinkClosedError,
    MalformedMessageError,
    RetriesExhaustedError,
)
from syncline.values.kinds import Kind
from syncline.values.replica import LinkStatus
from syncline.wire import names
from syncline.wire.sync_bodies import Encoding
from syncline.wire.sync_messages import Policy


class Client:
    """Made by `connect`. It reconnects by itself; after a number of attempts in vain it is offline,
    keeps what was not sent, and waits for `go_online`."""

    def __init__(
        self, engine: Engine, runner: LinkRunner, client_id: str, running: "asyncio.Task[None]"
    ) -> None:
        self.id = client_id
        self._engine = engine
        self._runner = runner
        self._running = running

    @property
    def status(self) -> LinkStatus:
        return self._engine.status.value

    def statuses(self) -> AsyncIterator[LinkStatus]:
        """The status now, and whenever it is another one."""
        return self._engine.status.values()

    async def online(self) -> None:
        """Wait for the connection. Raises RetriesExhaustedError if the client goes offline first,
        and what the router said if it ended the connection for good."""
        status = await self._engine.status.until(lambda status: status != LinkStatus.CONNECTING)
        code, message = self._engine.trouble
        if status is LinkStatus.CLOSED:
            raise error_of(code, message)
        if status is LinkStatus.OFFLINE:
            raise RetriesExhaustedError(
                f"the router cannot be reached{f' ({message})' if message else ''}; "
                "check its address, then go online again"
            )

    def go_online(self) -> None:
        """Try now, whether waiting, offline or closed by the router.

        Raises LinkClosedError once the client has ended.
        """
        if self._running.done():
            raise LinkClosedError(self._engine.trouble[1])
        self._engine.take(self._engine.machine.go_online(self._engine.now_ms()))

    async def go_offline(self) -> None:
        """Close the connection and stop trying. Changes made meanwhile are kept."""
        self._engine.take(self._engine.machine.go_offline())
        await self._runner.leave()

    async def renew_token(self, token: str) -> None:
        """Show the router a fresh token before the old one expires."""
        await self._runner.renew(token)

    def document(
        self,
        name: str,
        kind: Literal["json", "yjs", "bytes"] = "json",
        *,
        wait: bool = True,
        save_timeout_s: float = 10.0,
        change_count_max: int = CHANGE_COUNT_MAX,
    ) -> Document:
        """A document, to be opened with `async with`.

        `wait`: opening waits for the state. `save_timeout_s`: how long closing waits for changes to
        be stored. `change_count_max`: changes kept for each reader. Raises MalformedMessageError
        for what is no name, and ConfigError for what is no kind.
        """
        names.check_document(name)
        return Document(
            self._engine,
            name,
            _checked_kind(kind),
            _fold(_checked_kind(kind)),
            wait=wait,
            save_timeout_s=save_timeout_s,
            change_count_max=change_count_max,
        )


@asynccontextmanager
async def connect(
    url: str,
    *,
    client: str | None = None,
    token: TokenSource = None,
    policy: Policy = "clean",
    encoding: Encoding = "json",
    attempt_count_max: int = ATTEMPT_COUNT_MAX,
    ssl: SSLContext | None = None,
    proxy: str | None = None,
    open_timeout_s: float = 10.0,
) -> AsyncGenerator[Client]:
    """A client of the router at `url`, such as http://127.0.0.1:8080.

    It connects in the background: opening a document waits for it. `client` names this replica, at
    random if not given. `token` is a text or an asynchronous function that gets one, asked before
    each connection and before the token expires. `policy` is what the router keeps when the
    connection drops (docs/formats/sync.md). `attempt_count_max` attempts in vain, and the client is
    offline. Raises ConfigError for what cannot be used.
    """
    client_id = _checked_client_id(client)
    if policy not in ("clean", "intent", "resume"):
        raise ConfigError(f"{policy!r} is no policy; use clean, intent or resume")
    if encoding not in ("json", "msgpack"):
        raise ConfigError(f"{encoding!r} is no encoding; use json or msgpack")
    settings = LinkSettings(sync_url(url), encoding, ssl, proxy, open_timeout_s)
    engine = Engine(client_id, attempt_count_max)
    runner = LinkRunner(engine, settings, Identity(client_id, policy), token)
    # One task of its own, so that an error of the caller's block stays what it is.
    running = asyncio.create_task(_run(engine, runner), name="syncline client")
    running.add_done_callback(lambda task: _fail_all(engine, task))
    try:
        yield Client(engine, runner, client_id, running)
    finally:
        try:
            await runner.leave()
        finally:
            running.cancel()
            await asyncio.wait([running])
    if not running.cancelled():
        running.result()


async def _run(engine: Engine, runner: LinkRunner) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(engine.keep_time())
        while True:
            engine.link_turned.clear()
            if engine.machine.link is Link.DIALING:
                await runner.attempt()
            else:
                await engine.link_turned.wait()


def _fail_all(engine: Engine, task: "asyncio.Task[None]") -> None:
    """The client has ended: nobody is left waiting, and nobody who comes later waits."""
    error = None if task.cancelled() else task.exception()
    sentence = f"the client has ended{f': {error!r}' if error else ''}"
    for listener in list(engine.listeners.values()):
        listener.fail(LinkClosedError(sentence))
    engine.take(engine.machine.end())
    engine.trouble = ("closed", sentence)


def _checked_client_id(client: str | None) -> str:
    if client is None:
        return secrets.token_urlsafe(15)
    try:
        return names.check_client_id(client)
    except MalformedMessageError as error:
        raise ConfigError(str(error)) from error


def _checked_kind(kind: str) -> Kind:
    try:
        return Kind(kind)
    except ValueError as error:
        raise ConfigError(f"{kind!r} is no kind of document; use json, yjs or bytes") from error


def _fold(kind: Kind) -> Fold:
    match kind:
        case Kind.JSON:
            return JsonFold()
        case Kind.YJS:
            return yjs_fold()
        case Kind.BYTES:
            return UpdateFold()
