"""Puts the documents together: the hub, who is connected, and the faces that lead to it."""

from collections.abc import Callable

from syncline.server.cable_face import PATH as CABLE_PATH
from syncline.server.cable_face import CableFace
from syncline.server.clocks import Clock
from syncline.server.committer import Committer
from syncline.server.documents import Documents
from syncline.server.events import Events
from syncline.server.gathering import WebSockets
from syncline.server.logs import Log
from syncline.server.open_document import DocumentOptions
from syncline.server.sessions import Sessions
from syncline.server.settings import Settings
from syncline.server.sync_face import SyncFace, SyncSettings
from syncline.server.tokens import Tokens, offered_token
from syncline.server.yjs_face import PREFIX as YJS_PREFIX
from syncline.server.yjs_face import YjsFace
from syncline.server.yjs_rooms import YjsRooms
from syncline.storage.base import Store
from syncline.values.events import Face


def options_of(settings: Settings, life: bytes) -> DocumentOptions:
    return DocumentOptions(
        create_on_subscribe=settings.documents_create_on_subscribe,
        snapshot_update_count=settings.documents_snapshot_update_count,
        snapshot_bytes=settings.documents_snapshot_bytes,
        document_bytes_max=settings.documents_document_bytes_max,
        relative_lag_ms=settings.documents_relative_lag_seconds * 1_000,
        absolute_lag_ms=settings.documents_absolute_lag_seconds * 1_000,
        resume_ms=settings.documents_resume_seconds * 1_000,
        group_ms=settings.documents_group_ms,
        life=life,
    )


def open_documents(
    web_sockets: WebSockets,
    settings: Settings,
    tokens: Tokens,
    store: Store,
    committer: Committer,
    clock: Clock,
    random_bytes: Callable[[int], bytes],
    press: Callable[[], None],
    life: bytes,
    log: Log,
) -> Documents:
    """Let WebSockets in to the documents of a store that is open."""
    options = options_of(settings, life)
    events = Events.of(store, clock.wall_ms, Face.DOCUMENTS, is_wanted=settings.audit_events)
    documents = Documents(store, committer, clock, random_bytes, options, press, events, log)
    sync = SyncFace(
        documents,
        Sessions(clock.steady_ms, options.resume_ms),
        tokens.authorize,
        offered_token,
        random_bytes,
        clock.wall_ms,
        SyncSettings(
            frame_bytes_max=settings.websocket_message_bytes_max,
            document_count_max=settings.documents_documents_per_connection_max,
            heartbeat_ms=settings.websocket_heartbeat_seconds * 1_000,
        ),
    )
    rooms = YjsRooms(clock.steady_ms)
    yjs = YjsFace(
        documents,
        rooms,
        tokens.authorize,
        offered_token,
        random_bytes,
        clock.wall_ms,
        settings.websocket_message_bytes_max,
    )
    cable = CableFace(
        documents,
        rooms,
        tokens.authorize,
        offered_token,
        random_bytes,
        clock.wall_ms,
        settings.websocket_message_bytes_max,
        settings.documents_documents_per_connection_max,
    )
    web_sockets.register("/sync", sync.accept)
    web_sockets.register(YJS_PREFIX, yjs.accept)
    web_sockets.register(CABLE_PATH, cable.accept)
    return documents
