"""Data folders with services and queues, written by the records store itself."""

import random
from pathlib import Path

from syncline.storage.files import DiskFiles
from syncline.storage.folder import claim_folder
from syncline.storage.records.base import commit
from syncline.storage.records.sqlite import SqliteRecords
from syncline.values.queue_records import ServiceRole
from tests.storage.records.under_test import notifier, queue, queue_id, service, service_id

MESSAGING, NOTIFIER, EMPTY = 1, 2, 3


class RecordsFolder:
    """Services 1 (messages), 2 (notifications) and 3 (no queues), and queues as asked for."""

    def __init__(self, folder: Path, store: int = 1) -> None:
        self.folder = str(folder)
        folder.mkdir()
        random_bytes = random.Random(store).randbytes
        _, lock = claim_folder(self.folder, DiskFiles(), "log", 1, random_bytes)
        lock.release()
        self.records = SqliteRecords.open(self.folder, DiskFiles())
        self.records.create_service(service(MESSAGING))
        self.records.create_service(service(NOTIFIER, ServiceRole.NOTIFIER))
        self.records.create_service(service(EMPTY))
        commit(self.records)

    def add(self, *numbers: int) -> None:
        """Queues of service 1, every third with a notifier of service 2."""
        for number in numbers:
            watched = notifier(number, service_id(NOTIFIER)) if number % 3 == 0 else None
            record = queue(number, service_id=service_id(MESSAGING), notifier=watched)
            self.records.create_queue(record)
        commit(self.records)

    def remove(self, *numbers: int) -> None:
        for number in numbers:
            self.records.delete_queue(queue_id(number))
        commit(self.records)

    def sets(self) -> dict[tuple[bytes, str], list[bytes]]:
        """The ids of each set, as the store pages through them."""
        roles = {MESSAGING: "M", NOTIFIER: "N", EMPTY: "M"}
        return {
            (service_id(number), role): self.records.page(service_id(number), None, 60_000)
            for number, role in roles.items()
        }

    def stop(self) -> None:
        self.records.close()
