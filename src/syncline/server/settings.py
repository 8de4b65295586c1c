"""Every setting of the router, with its default, its bounds and what it is for."""

from dataclasses import dataclass, field, fields
from typing import cast

from syncline.server.origins import SAME_ORIGIN
from syncline.server.websocket import WebSocketLimits
from syncline.storage.options import AUTO_KIND, STORE_KINDS, StoreOptions
from syncline.values import limits
from syncline.values.limits import KIB, MIB

ENVIRONMENT_PREFIX = "SYNCLINE_"
DAY_SECONDS = 24 * 60 * 60

TOKEN_ALGORITHMS = ("HS256", "HS384", "HS512", "RS256", "ES256", "EdDSA")

# A tuple is a list of words: an array in the file, parted by commas elsewhere.
Value = str | int | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of one setting."""

    key: str
    about: str
    type: type[str] | type[int] | type[bool] | type[tuple[str, ...]]
    default: Value
    low: int = 0
    high: int = 0
    choices: tuple[str, ...] = ()
    is_secret: bool = False

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.key.replace(".", "_").upper()


def _text(key: str, default: str, about: str, *choices: str) -> str:
    known = Setting(key, about, str, default, choices=choices)
    return field(default=default, metadata={"setting": known})


def _secret(key: str, about: str) -> str:
    known = Setting(key, about, str, "", is_secret=True)
    return field(default="", repr=False, metadata={"setting": known})


def _words(key: str, default: tuple[str, ...], about: str) -> tuple[str, ...]:
    known = Setting(key, about, tuple, default)
    return field(default=default, metadata={"setting": known})


def _number(key: str, default: int, low: int, high: int, about: str) -> int:
    known = Setting(key, about, int, default, low, high)
    return field(default=default, metadata={"setting": known})


def _switch(key: str, default: bool, about: str) -> bool:
    known = Setting(key, about, bool, default)
    return field(default=default, metadata={"setting": known})


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, with its default. The field `http_port` is the setting `http.port`."""

    store_folder: str = _text("store.folder", "./syncline-data", "where the data is")
    store_kind: str = _text(
        "store.kind",
        AUTO_KIND,
        "how it is kept; auto is what the folder holds already, and a log in a new one; "
        "what is in memory is gone when the router stops",
        AUTO_KIND,
        *STORE_KINDS,
    )
    store_durability: str = _text(
        "store.durability",
        "commit",
        "commit: on the device before it is acknowledged; relaxed: left to the operating system",
        "commit",
        "relaxed",
    )
    store_segment_bytes: int = _number(
        "store.segment_bytes",
        limits.segment_bytes_default,
        limits.segment_bytes_min,
        limits.segment_bytes_max,
        "size of one file of the log",
    )
    store_refuses_damage: bool = _switch(
        "store.refuses_damage", False, "do not start on a damaged log; else whole queues are served"
    )
    store_free_bytes_min: int = _number(
        "store.free_bytes_min",
        64 * MIB,
        0,
        1 << 50,
        "with less free space new messages are refused; reading and acknowledging go on",
    )

    audit_events: bool = _switch(
        "audit.events", True, "note in the log who was handed what, for checks later on"
    )
    audit_archive_bytes_max: int = _number(
        "audit.archive_bytes_max",
        256 * MIB,
        0,
        1 << 50,
        "old files of the log that are kept for such checks; 0: none",
    )
    audit_archive_seconds_max: int = _number(
        "audit.archive_seconds_max",
        7 * 24 * 60 * 60,
        0,
        10 * 366 * 24 * 60 * 60,
        "for how long; 0: until there are too many",
    )

    queues_quota_default: int = _number(
        "queues.quota_default",
        limits.queue_quota_default,
        0,
        limits.queue_quota_max,
        "unread messages a new queue may hold; 0 for no quota",
    )
    queues_expire_after_seconds: int = _number(
        "queues.expire_after_seconds",
        0,
        0,
        3_650 * DAY_SECONDS,
        "age at which unread messages are dropped; 0 keeps them",
    )

    smp_enabled: bool = _switch("smp.enabled", True, "serve queues over SMP")
    smp_host: str = _text("smp.host", "127.0.0.1", "address to listen on for SMP over TLS")
    smp_port: int = _number("smp.port", 5223, 0, 65_535, "its port; 0 for a free one")
    smp_public_hosts: tuple[str, ...] = _words(
        "smp.public_hosts", (), "names under which clients reach it; they go into its address"
    )
    smp_certificate_folder: str = _text(
        "smp.certificate_folder",
        "",
        "where the certificates and keys are; else `certificates` in the data folder",
    )
    smp_takes_new_queues: bool = _switch("smp.takes_new_queues", True, "let clients make queues")
    smp_create_password: str = _secret("smp.create_password", "what clients must know to do so")
    smp_web_sockets: bool = _switch("smp.web_sockets", True, "serve SMP over WebSockets as well")
    smp_quota: int = _number(
        "smp.quota", limits.queue_quota_default, 1, 32_767, "messages that may wait in a queue"
    )
    smp_expire_after_seconds: int = _number(
        "smp.expire_after_seconds",
        21 * DAY_SECONDS,
        0,
        3_650 * DAY_SECONDS,
        "age at which messages that nobody took are dropped; 0 keeps them",
    )
    smp_connection_count_max: int = _number(
        "smp.connection_count_max", 20_000, 1, 1_000_000, "connections at a time"
    )
    smp_connections_per_address_max: int = _number(
        "smp.connections_per_address_max",
        20_000,
        1,
        1_000_000,
        "connections at a time from one address",
    )
    smp_handshake_seconds_max: int = _number(
        "smp.handshake_seconds_max", 30, 1, 600, "time for TLS and the first blocks"
    )
    smp_idle_seconds_max: int = _number(
        "smp.idle_seconds_max",
        21_600,
        0,
        30 * DAY_SECONDS,
        "silence after which a connection without subscriptions is closed; 0 for never",
    )
    smp_waiting_bytes_max: int = _number(
        "smp.waiting_bytes_max",
        256 * KIB,
        64 * KIB,
        16 * MIB,
        "bytes that may wait for a reader; above it nothing more is delivered to it",
    )
    smp_all_waiting_bytes_max: int = _number(
        "smp.all_waiting_bytes_max",
        512 * MIB,
        64 * MIB,
        1_024 * 1_024 * MIB,
        "bytes that may wait for all readers; above it those are cut off that have most waiting",
    )
    smp_slow_seconds_max: int = _number(
        "smp.slow_seconds_max",
        60,
        1,
        3_600,
        "time for which such a reader may take nothing before it is cut off",
    )
    smp_services: bool = _switch("smp.services", True, "let clients present a certificate")
    smp_service_count_max: int = _number(
        "smp.service_count_max", 10_000, 1, 10_000_000, "services that are kept"
    )
    smp_walk_hours: int = _number(
        "smp.walk_hours",
        24,
        0,
        8_760,
        "time in which all sets of services are compared with their digests once; 0 for never",
    )
    smp_recompute_digests: bool = _switch(
        "smp.recompute_digests",
        False,
        "compare them all at the start, before anybody is served",
    )
    smp_proxy: str = _text(
        "smp.proxy",
        "auto",
        "routers that clients may reach through this one; auto is any while it listens on loopback "
        "and public addresses else",
        "auto",
        "any",
        "public",
        "none",
    )
    smp_proxy_connection_count_max: int = _number(
        "smp.proxy_connection_count_max", 256, 1, 65_536, "other routers connected at a time"
    )

    http_host: str = _text("http.host", "127.0.0.1", "address to listen on")
    http_port: int = _number("http.port", 8080, 0, 65_535, "port to listen on; 0 for a free one")
    http_allow_remote: bool = _switch(
        "http.allow_remote", False, "allow an address that other machines can reach; needs a token"
    )
    http_token: str = _secret("http.token", "what callers must send as `Authorization: Bearer …`")
    http_token_file: str = _text("http.token_file", "", "a file with the token, in place of it")
    http_connection_count_max: int = _number(
        "http.connection_count_max", 1_024, 1, 65_536, "connections at a time"
    )
    http_message_bytes_max: int = _number(
        "http.message_bytes_max",
        limits.entry_bytes_max,
        1,
        limits.entry_bytes_max,
        "size of one message",
    )
    http_body_bytes_max: int = _number(
        "http.body_bytes_max", 16 * MIB, 1_024, 64 * MIB, "size of one request, batches included"
    )
    http_request_seconds_max: int = _number(
        "http.request_seconds_max",
        30,
        1,
        3_600,
        "time for a request to arrive, and for each part of an answer to be taken",
    )
    http_wait_seconds_max: int = _number(
        "http.wait_seconds_max", 30, 0, 3_600, "how long a reader may wait for a message"
    )

    websocket_origins: tuple[str, ...] = _words(
        "websocket.origins",
        (SAME_ORIGIN,),
        "pages that may connect: their origins; same is the host they connect to, * is any",
    )
    websocket_message_bytes_max: int = _number(
        "websocket.message_bytes_max", 1 * MIB, 1_024, 16 * MIB, "size of one message"
    )
    websocket_connection_count_max: int = _number(
        "websocket.connection_count_max", 4_096, 1, 1_000_000, "WebSockets at a time"
    )
    websocket_connections_per_address_max: int = _number(
        "websocket.connections_per_address_max",
        1_024,
        1,
        1_000_000,
        "WebSockets at a time from one address; behind a proxy all come from one",
    )
    websocket_heartbeat_seconds: int = _number(
        "websocket.heartbeat_seconds",
        20,
        1,
        3_600,
        "silence after which a ping is sent; after twice that the connection is given up",
    )
    websocket_waiting_bytes_max: int = _number(
        "websocket.waiting_bytes_max",
        4 * MIB,
        64 * KIB,
        1_024 * MIB,
        "bytes that a reader may cost; from half of them on nothing more is sent to it",
    )
    websocket_all_waiting_bytes_max: int = _number(
        "websocket.all_waiting_bytes_max",
        512 * MIB,
        64 * MIB,
        1_024 * 1_024 * MIB,
        "bytes that may wait for all readers; above it those are cut off that have most waiting",
    )
    websocket_slow_seconds_max: int = _number(
        "websocket.slow_seconds_max",
        10,
        1,
        3_600,
        "time for which such a reader may take nothing before it is cut off",
    )
    websocket_close_seconds_max: int = _number(
        "websocket.close_seconds_max", 5, 1, 60, "time for a closed connection to end"
    )
    websocket_messages_per_second: int = _number(
        "websocket.messages_per_second",
        5_000,
        1,
        1_000_000,
        "how fast one connection may send; a faster one is slowed down",
    )
    websocket_bytes_per_second: int = _number(
        "websocket.bytes_per_second",
        16 * MIB,
        1_024,
        1_024 * MIB,
        "the same in bytes",
    )

    documents_enabled: bool = _switch(
        "documents.enabled", True, "serve documents under /sync, /yjs/… and /cable"
    )
    documents_create_on_subscribe: bool = _switch(
        "documents.create_on_subscribe", True, "make a document when somebody first asks for it"
    )
    documents_snapshot_update_count: int = _number(
        "documents.snapshot_update_count",
        256,
        1,
        1_000_000,
        "updates after which a snapshot is taken",
    )
    documents_snapshot_bytes: int = _number(
        "documents.snapshot_bytes",
        1 * MIB,
        1_024,
        limits.snapshot_bytes_max,
        "bytes of updates after which a snapshot is taken",
    )
    documents_document_bytes_max: int = _number(
        "documents.document_bytes_max",
        8 * MIB,
        1_024,
        limits.snapshot_bytes_max,
        "size of one document",
    )
    documents_relative_lag_seconds: int = _number(
        "documents.relative_lag_seconds",
        30,
        1,
        DAY_SECONDS,
        "how old what a connection has not acknowledged may become while others keep up",
    )
    documents_absolute_lag_seconds: int = _number(
        "documents.absolute_lag_seconds",
        1_800,
        1,
        30 * DAY_SECONDS,
        "the same when nobody keeps up",
    )
    documents_resume_seconds: int = _number(
        "documents.resume_seconds",
        900,
        0,
        30 * DAY_SECONDS,
        "how long the place of a dropped connection is kept, if it asked for that",
    )
    documents_group_ms: int = _number(
        "documents.group_ms",
        20,
        0,
        100,
        "how long at most an update waits for others that are made durable with it",
    )
    documents_documents_per_connection_max: int = _number(
        "documents.documents_per_connection_max",
        1_000,
        1,
        100_000,
        "documents that one connection may have open",
    )
    documents_token_key: str = _secret(
        "documents.token_key", "what tokens are checked with: a secret, or a public key as PEM"
    )
    documents_token_key_files: tuple[str, ...] = _words(
        "documents.token_key_files", (), "files with such keys, one each; any of them will do"
    )
    documents_token_algorithm: str = _text(
        "documents.token_algorithm",
        "auto",
        "how tokens are signed; auto is HS256 for a secret, else what the public key is for",
        "auto",
        *TOKEN_ALGORITHMS,
    )
    documents_token_audience: str = _text(
        "documents.token_audience", "", "what `aud` of a token must name, if anything"
    )
    documents_token_issuer: str = _text(
        "documents.token_issuer", "", "what `iss` of a token must be, if anything"
    )
    documents_token_needs_expiry: bool = _switch(
        "documents.token_needs_expiry", True, "refuse tokens that never expire"
    )

    upkeep_scrub_bytes_per_second: int = _number(
        "upkeep.scrub_bytes_per_second",
        1 * MIB,
        0,
        1_024 * MIB,
        "how fast sealed files are read again and checked; 0 for never",
    )
    upkeep_stop_seconds_max: int = _number(
        "upkeep.stop_seconds_max", 10, 0, 600, "time that open requests get when the router stops"
    )

    log_format: str = _text(
        "log.format", "auto", "auto is pretty on a terminal and json else", "auto", "json", "pretty"
    )
    log_level: str = _text(
        "log.level", "info", "the least that is logged", "debug", "info", "warning", "error"
    )
    log_ids: bool = _switch("log.ids", False, "write queue ids into the log")

    @property
    def has_token_keys(self) -> bool:
        """Without one, whoever reaches the router may do everything with documents."""
        return bool(self.documents_token_key or self.documents_token_key_files)

    def websocket_limits(self) -> WebSocketLimits:
        return WebSocketLimits(
            message_bytes_max=self.websocket_message_bytes_max,
            connection_count_max=self.websocket_connection_count_max,
            connections_per_address_max=self.websocket_connections_per_address_max,
            heartbeat_seconds=self.websocket_heartbeat_seconds,
            waiting_bytes_max=self.websocket_waiting_bytes_max,
            all_waiting_bytes_max=self.websocket_all_waiting_bytes_max,
            slow_seconds_max=self.websocket_slow_seconds_max,
            close_seconds_max=self.websocket_close_seconds_max,
            messages_per_second=self.websocket_messages_per_second,
            bytes_per_second=self.websocket_bytes_per_second,
        )

    def store_options(self) -> StoreOptions:
        return StoreOptions(
            is_durable=self.store_durability == "commit",
            segment_bytes=self.store_segment_bytes,
            has_job_process=True,
            refuses_damage=self.store_refuses_damage,
            archive_bytes_max=self.audit_archive_bytes_max if self.audit_events else 0,
            archive_age_ms_max=self.audit_archive_seconds_max * 1_000,
        )


SETTINGS: dict[str, Setting] = {
    known.key: known
    for known in (cast(Setting, each.metadata["setting"]) for each in fields(Settings))
}
