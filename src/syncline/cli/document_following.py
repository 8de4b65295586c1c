"""`document watch` and `document patch`: a client of the router for as long as it takes."""

import asyncio
import logging
import time
from base64 import b64encode
from typing import Any

import msgspec

from syncline.cli import interrupting
from syncline.cli.output import Output, printable
from syncline.client import Change, ChangeReader, Document, DocumentStatus, Mutated, connect
from syncline.errors import LinkLostError, SynclineError
from syncline.values.json_value import JsonObject
from syncline.values.kinds import Kind
from syncline.values.replica import Body

SAVE_SECONDS = 30.0
# Somebody waits for it: the router has just answered, so it is back soon or not at all.
_PATCH_ATTEMPT_COUNT_MAX = 4
_PREVIEW_CHARACTERS = 400

# The client tells what happens to its connection; here that becomes a sentence or an error.
logging.getLogger("syncline.client").addHandler(logging.NullHandler())


def follow(
    output: Output, url: str, name: str, kind: Kind, token: str | None, count: int | None
) -> None:
    """Print changes, `count` of them or until stopped. Raises what ends it otherwise."""
    interrupting.run(_follow(output, url, name, kind, token, count))


def change(url: str, name: str, patch: JsonObject, token: str | None) -> int:
    """Send a merge patch; the sequence at which it is stored. Raises RefusedError, LinkError."""
    return interrupting.run(_change(url, name, patch, token))


async def _change(url: str, name: str, patch: JsonObject, token: str | None) -> int:
    attempts = _PATCH_ATTEMPT_COUNT_MAX
    async with connect(f"{url}/sync", token=token, attempt_count_max=attempts) as client:
        try:
            async with asyncio.timeout(SAVE_SECONDS), client.document(name) as document:
                return await document.change(patch)
        except TimeoutError as error:
            raise LinkLostError(
                f"the router did not say within {SAVE_SECONDS:.0f} s that the patch is stored; "
                "look at the state before you send it again"
            ) from error


async def _follow(
    output: Output, url: str, name: str, kind: Kind, token: str | None, count: int | None
) -> None:
    async with (
        connect(f"{url}/sync", token=token) as client,
        client.document(name, kind.value) as document,
    ):
        changes = aiter(document)
        _print_start(output, document)
        failure: Exception | None = None
        async with asyncio.TaskGroup() as group:
            guard = group.create_task(tell_status(output, document, changes))
            try:
                await print_changes(output, changes, count)
            except (SynclineError, BrokenPipeError) as error:
                # As it is: a group of tasks would wrap it.
                failure = error
            guard.cancel()
        if failure is not None:
            raise failure


async def print_changes(output: Output, changes: ChangeReader, count: int | None) -> None:
    left = count
    async for change in changes:
        if output.is_json:
            output.json(_facts(change))
        else:
            output.line(_line(change))
        if left is not None:
            left -= 1
            if left == 0:
                return


async def tell_status(output: Output, document: Document, changes: ChangeReader) -> None:
    """A lost connection is tried again; once that is given up, nothing more will come."""
    async for status in document.statuses():
        if status in (DocumentStatus.OFFLINE, DocumentStatus.CLOSED):
            try:
                await document.live()
            except SynclineError as error:
                changes.end(error)
            return
        if status is not DocumentStatus.LIVE:
            output.note("the connection is lost; trying again")


def _print_start(output: Output, document: Document) -> None:
    if output.is_json:
        output.json(
            {
                "event": "following",
                "name": document.name,
                "kind": document.kind,
                "seq": document.seq,
            }
        )
    else:
        output.line(f"following {document.name} from {document.seq}; Ctrl-C ends it")


def _facts(change: Change) -> dict[str, Any]:
    if isinstance(change, Mutated):
        return {
            "event": "mutated",
            "seq": change.seq,
            "client": change.client,
            "mutation": change.mutation,
        }
    return {
        "event": "replaced",
        "seq": change.seq,
        "reason": change.reason,
        "state": change.state,
    }


def _line(change: Change) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
    if isinstance(change, Mutated):
        return f"{stamp} {change.seq:>6} {change.client} {_preview(change.mutation)}"
    return (
        f"{stamp} {change.seq or 0:>6} the whole state ({change.reason}) {_preview(change.state)}"
    )


def _preview(body: Body) -> str:
    if isinstance(body, bytes):
        text = b64encode(body).decode()
    else:
        text = printable(msgspec.json.encode(body).decode())
    if len(text) <= _PREVIEW_CHARACTERS:
        return text
    return f"{text[:_PREVIEW_CHARACTERS]}… ({len(text)} characters)"
