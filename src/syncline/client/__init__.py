"""The Python client: documents that follow a router, over `/sync`. Page: docs/python-client.md"""

from syncline.client.changes import Change, ChangeReader, Mutated, Replaced
from syncline.client.client import Client, connect
from syncline.client.document import Document
from syncline.client.saving import OwnChange, Saved
from syncline.client.yjs import YjsBinding
from syncline.values.replica import DocumentStatus, LinkStatus

__all__ = [
    "Change",
    "ChangeReader",
    "Client",
    "Document",
    "DocumentStatus",
    "LinkStatus",
    "Mutated",
    "OwnChange",
    "Replaced",
    "Saved",
    "YjsBinding",
    "connect",
]
