"""What goes wrong on purpose between a client and a router: each a meddler of the proxy.

Each keeps an account of what it did, as frames told it: documents by name, changes by sequence or
by the clock of their author. Nothing of it is known to the router, to its log, or to the audit.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from syncline.demo.proxy import Frame


class Honest:
    """Passes everything on once."""

    def to_router(self, frame: Frame) -> int:
        return 1

    def to_client(self, frame: Frame) -> int:
        return 1


@dataclass(slots=True)
class LosesChanges(Honest):
    """While it is on, whatever the router says of these documents gets lost the first time.

    So the client hears nothing at all, rather than something with a gap: it cannot know, and the
    router has to send again by itself.
    """

    documents: Collection[str]
    is_on: bool = False
    lost: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    def to_client(self, frame: Frame) -> int:
        if frame["type"] != "mutation" or frame["document"] not in self.documents:
            return 1
        place = (frame["document"], frame["seq"])
        if self.is_on and place not in self.lost:
            self.lost.add(place)
            return 0
        return 1


@dataclass(slots=True)
class RepeatsChanges(Honest):
    """While it is on, every change of the client arrives twice."""

    is_on: bool = False
    repeated: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    def to_router(self, frame: Frame) -> int:
        if frame["type"] != "mutation" or not self.is_on:
            return 1
        self.repeated.add((frame["document"], frame["clock"]))
        return 2


@dataclass(slots=True)
class LosesAcknowledgements(Honest):
    """While it is on, the router never learns what the client has of these documents.

    Once the client was told that its place was given up, it is off: the next place is kept.
    """

    documents: Collection[str]
    is_on: bool = False
    evicted: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])

    def to_router(self, frame: Frame) -> int:
        is_lost = frame["type"] == "ack" and frame["document"] in self.documents
        return 0 if self.is_on and is_lost else 1

    def to_client(self, frame: Frame) -> int:
        if frame["type"] == "evicted":
            self.evicted.append((frame["document"], frame["seq"]))
            self.is_on = False
        return 1
