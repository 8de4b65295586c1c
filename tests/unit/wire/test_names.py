"""Names of documents and clients: what is taken and what is refused."""

import pytest

from syncline.errors import MalformedMessageError
from syncline.wire import names


@pytest.mark.parametrize(
    "name",
    ["a", "issues/1", "a b", "é" * 100, "😀" * 50, "x" * 200, "\u00a0", "naïve \u2028 name", "\\"],
)
def test_document_names(name: str) -> None:
    assert names.check_document(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "x" * 201, "é" * 101, "😀" * 51, "a\n", "\x00", "a\x7f", "é\x9f", "\ud800", "é\t"],
)
def test_no_document_names(name: str) -> None:
    with pytest.raises(MalformedMessageError, match="1 to 200 bytes"):
        names.check_document(name)


@pytest.mark.parametrize("client", ["a", "A-Z.a_z~0-9", "x" * 64])
def test_client_ids(client: str) -> None:
    assert names.check_client_id(client) == client


@pytest.mark.parametrize("client", ["", "x" * 65, "a b", "a\n", "é", "a/b", "\ud800"])
def test_no_client_ids(client: str) -> None:
    with pytest.raises(MalformedMessageError, match="1 to 64 characters"):
        names.check_client_id(client)
