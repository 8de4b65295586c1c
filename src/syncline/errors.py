"""Every error that Syncline raises on purpose, named by who has to act.

    SynclineError
      ProtocolError              the peer broke the rules
        MalformedMessageError      bytes that are no message
        UnexpectedMessageError     a message that its state does not allow
        UnsupportedVersionError    a version that is not spoken here
        LimitExceededError         larger, longer or more than allowed
      RefusedError               the router says no; `code` is what the wire carries
        NotAuthorizedError
        UnknownQueueError
        QueueExistsError
        UnknownDocumentError
        WrongKindError
        InvalidMutationError
        DocumentFullError
        QuotaExceededError
        ServiceMismatchError
        UnknownServiceError
      LinkError                  the connection is at fault
        LinkClosedError
        LinkLostError
        RetriesExhaustedError
      StorageError               the data folder or its device is at fault
        CorruptionError            bytes on disk that fail their check
        StoreFullError             no room; reads go on
          StoreHeldError             another process writes to the file; reads go on
        StoreBusyError             more waits for the disk than is allowed
        StoreLockedError           another process has the folder
        ForeignFolderError         the folder belongs to something else
        NewerFormatError           written by a later version
        DeviceError                the device failed; fatal for the process
      ConfigError                what the operator wrote cannot be used
      PipelineError              a job of the data pipeline cannot go on
        MissingPieceError          Java or a package is not installed
        SchemaError                columns that were not agreed
        ExpectationError           rows that break an expectation
        TableError                 a table, or a version of it, cannot be read
        CommitConflictError        another job changed the table first

Facts are fields; the sentence is made from them and ends with what to do. `retriable` says whether
trying the same again can help.
"""

from typing import ClassVar


class SynclineError(Exception):
    """The root: catch it at the edge of a program, nowhere else."""

    retriable: ClassVar[bool] = False


class ProtocolError(SynclineError):
    """The peer broke the rules; its connection ends."""


class MalformedMessageError(ProtocolError):
    """Bytes that are no message of the protocol."""


class UnexpectedMessageError(ProtocolError):
    """A message that the state of the connection does not allow."""


class UnsupportedVersionError(ProtocolError):
    """A version of the protocol that is not spoken here."""


class LimitExceededError(ProtocolError):
    """Something is larger, longer or more than `limits` allow."""

    def __init__(self, what: str, value: int, limit: int) -> None:
        super().__init__(f"{what} is {value}, the limit is {limit}")
        self.what = what
        self.value = value
        self.limit = limit


class RefusedError(SynclineError):
    """The router understood and says no; `code` travels on the wire."""

    code: ClassVar[str] = "REFUSED"


class NotAuthorizedError(RefusedError):
    """The peer may not do this."""

    code = "AUTH"


class UnknownQueueError(RefusedError):
    """No queue or stream with this id exists."""

    code = "UNKNOWN_QUEUE"

    def __init__(self, stream: str) -> None:
        super().__init__(f"no queue {stream} exists; create it first")
        self.stream = stream


class QueueExistsError(RefusedError):
    """A queue or stream with this id exists already."""

    code = "QUEUE_EXISTS"

    def __init__(self, stream: str) -> None:
        super().__init__(f"queue {stream} exists already; choose another id or delete it first")
        self.stream = stream


class UnknownDocumentError(RefusedError):
    """No document with this name exists."""

    code = "UNKNOWN_DOCUMENT"


class WrongKindError(RefusedError):
    """The document exists and is of another kind."""

    code = "KIND"

    def __init__(self, is_kind: str, asked_kind: str) -> None:
        super().__init__(f"the document is of kind {is_kind}, not {asked_kind}")
        self.is_kind = is_kind
        self.asked_kind = asked_kind


class InvalidMutationError(RefusedError):
    """Not a mutation of this kind of document; it will never be one."""

    code = "INVALID_MUTATION"


class DocumentFullError(RefusedError):
    """The document has reached its largest size."""

    code = "DOCUMENT_FULL"

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            f"the document would pass {bytes_max} bytes; delete from it, or raise "
            "documents.document_bytes_max"
        )
        self.bytes_max = bytes_max


class QuotaExceededError(RefusedError):
    """The queue is full; it opens again once its reader has emptied it."""

    code = "QUOTA"
    retriable = True

    def __init__(self, stream: str, quota: int) -> None:
        super().__init__(
            f"queue {stream} holds its quota of {quota} messages; "
            "it takes more once its reader has emptied it"
        )
        self.stream = stream
        self.quota = quota


class ServiceMismatchError(RefusedError):
    """The service of the session is not the one the queue belongs to."""

    code = "SERVICE"


class UnknownServiceError(RefusedError):
    """No service with this id exists."""

    code = "UNKNOWN_SERVICE"

    def __init__(self, service: str) -> None:
        super().__init__(f"no service {service} exists; `syncline service list` shows them")
        self.service = service


class LinkError(SynclineError):
    """The connection to a peer is at fault."""

    retriable = True


class LinkClosedError(LinkError):
    """The connection was closed in order."""


class LinkLostError(LinkError):
    """The connection broke."""


class RetriesExhaustedError(LinkError):
    """Trying again was tried often enough."""

    retriable = False


class StorageError(SynclineError):
    """The data folder or the device below it is at fault."""


class CorruptionError(StorageError):
    """Bytes on disk that fail their check."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(
            f"{file} is damaged at byte {offset}: {reason}; "
            "`syncline verify` lists the damage, `syncline repair` keeps what is readable"
        )
        self.file = file
        self.offset = offset
        self.reason = reason


class StoreFullError(StorageError):
    """There is no room for a new write. Reads and acknowledgements go on."""

    retriable = True

    def __init__(self, path: str, reason: str = "the disk is full") -> None:
        super().__init__(f"{path}: {reason}; free some space, writing goes on by itself")
        self.path = path
        self.reason = reason


class StoreHeldError(StoreFullError):
    """Another process writes to the file and does not come to an end. Reads go on."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "another process writes to it")
        self.args = (f"{path}: {self.reason}; end that, writing goes on by itself",)


class StoreBusyError(StorageError):
    """More bytes wait for the disk than the limit allows; wait for the commit, then try again."""

    retriable = True

    def __init__(self, waiting_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{waiting_bytes} bytes wait for the disk, the limit is {limit_bytes}; try again later"
        )
        self.waiting_bytes = waiting_bytes
        self.limit_bytes = limit_bytes


class StoreLockedError(StorageError):
    """Another process works on this data folder."""

    def __init__(self, folder: str, holder: str = "") -> None:
        whose = f" (process {holder})" if holder else ""
        super().__init__(
            f"the data folder {folder} is in use by another router{whose}; "
            "stop that one or choose another folder"
        )
        self.folder = folder
        self.holder = holder


class ForeignFolderError(StorageError):
    """The folder holds something that this store did not write."""

    def __init__(
        self,
        folder: str,
        reason: str,
        advice: str = "choose an empty folder or one that Syncline made",
    ) -> None:
        super().__init__(f"{folder} cannot be used as a data folder: {reason}; {advice}")
        self.folder = folder
        self.reason = reason


class NewerFormatError(StorageError):
    """The folder was written by a later version of Syncline."""

    def __init__(self, folder: str, found: int, known: int) -> None:
        super().__init__(
            f"{folder} has format {found}, this version reads up to {known}; "
            "start it with the version that wrote it or a later one"
        )
        self.folder = folder
        self.found = found
        self.known = known


class DeviceError(StorageError):
    """A write, a sync or a read failed on the device.

    After a failed sync nobody knows what is on the disk, and asking again may wrongly say that all
    is well. So it is fatal: the process stops acknowledging, ends, and replays at its next start.
    """

    def __init__(self, path: str, operation: str, reason: str) -> None:
        super().__init__(
            f"{operation} of {path} failed: {reason}; nothing unsaved was acknowledged. "
            "Check the device, then start again: the log is replayed"
        )
        self.path = path
        self.operation = operation
        self.reason = reason


class ConfigError(SynclineError):
    """What the operator wrote cannot be used."""


class PipelineError(SynclineError):
    """A job of the data pipeline cannot go on."""


class MissingPieceError(PipelineError):
    """Something that Spark needs is not installed; the sentence says how to get it."""


class SchemaError(PipelineError):
    """A table does not have the columns that were agreed."""


class ExpectationError(PipelineError):
    """Rows break an expectation; the load does not land."""


class TableError(PipelineError):
    """A table, or a version of it, is not there or cannot be read."""

    def __init__(self, table: str, reason: str) -> None:
        super().__init__(f"the table {table} cannot be used: {reason}")
        self.table = table
        self.reason = reason


class CommitConflictError(PipelineError):
    """Another job changed the table first. Nothing of this one landed; run it again."""

    retriable = True

    def __init__(self, table: str, version: int) -> None:
        super().__init__(
            f"the table {table} was changed by another job since version {version}; run it again"
        )
        self.table = table
        self.version = version
