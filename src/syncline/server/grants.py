"""What whoever checks tokens gives to the faces."""

from typing import Protocol


class Grant(Protocol):
    """What a token allows."""

    @property
    def subject(self) -> str | None: ...

    @property
    def expires_ms(self) -> int | None: ...

    def may_read(self, document: str) -> bool: ...

    def may_write(self, document: str) -> bool: ...
