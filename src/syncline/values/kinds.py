"""The kinds of documents: how updates fold into a state, and how both travel."""

from enum import StrEnum


class Kind(StrEnum):
    JSON = "json"
    YJS = "yjs"
    BYTES = "bytes"
