"""The names that peers choose: of documents and of clients, as docs/formats/sync.md has them.

Every face takes names from peers (a field, a path, an identifier) and checks them here.
"""

import re

from syncline.errors import MalformedMessageError
from syncline.values import limits

# Searched for, so it is anchored; `\Z`, since `$` lets a line feed pass.
client_pattern = rf"\A[A-Za-z0-9._~-]{{1,{limits.client_id_characters_max}}}\Z"
document_rule = (
    f"a name of 1 to {limits.document_name_bytes_max} bytes UTF-8 without control characters"
)
client_rule = f"an id of 1 to {limits.client_id_characters_max} characters from A-Z a-z 0-9 . _ ~ -"

_control = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_client = re.compile(client_pattern)


def is_document_name(name: str) -> bool:
    # The first line is enough for most names, and quick: it runs for every message.
    if name.isascii() and name.isprintable():
        return 0 < len(name) <= limits.document_name_bytes_max
    return _utf8_bytes(name) <= limits.document_name_bytes_max and not _control.search(name)


def is_client_id(client: str) -> bool:
    return _client.search(client) is not None


def check_document(name: str) -> str:
    """The name itself; raises MalformedMessageError if it is none."""
    if not is_document_name(name):
        raise MalformedMessageError(f"a document has {document_rule}; choose another one")
    return name


def check_client_id(client: str) -> str:
    """The id itself; raises MalformedMessageError if it is none."""
    if not is_client_id(client):
        raise MalformedMessageError(f"a client has {client_rule}; choose another one")
    return client


def _utf8_bytes(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return limits.document_name_bytes_max + 1
