"""Logging: events with fields, as JSON lines or for a person at a terminal.

Queue ids are left out unless the operator asks for them; payloads and tokens are never passed in.
"""

import logging
import sys
from typing import cast

import structlog
from structlog.types import EventDict, Processor, WrappedLogger

_ID_FIELDS = ("queue", "stream")


class Log:
    """What the server says, and to whom does not matter to it."""

    def __init__(self, logger: structlog.stdlib.BoundLogger) -> None:
        self._logger = logger

    def info(self, event: str, **fields: object) -> None:
        self._logger.info(event, **fields)

    def warning(self, event: str, **fields: object) -> None:
        self._logger.warning(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        self._logger.error(event, **fields)


def set_up(*, is_json: bool, level: str, with_ids: bool) -> Log:
    """Send everything to standard error, the words of the HTTP server included."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if not with_ids:
        shared.append(_without_ids)
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if is_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            renderer,
        ]
        if is_json
        else [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error"):
        # Whoever set it up before may have kept its words to itself.
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
        logger.disabled = False
    # It reports each start and stop as well, in its own words; its warnings are enough.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, root.level))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    return Log(cast(structlog.stdlib.BoundLogger, structlog.get_logger("syncline")))


def _without_ids(_logger: WrappedLogger, _name: str, event: EventDict) -> EventDict:
    for field in _ID_FIELDS:
        event.pop(field, None)
    return event
