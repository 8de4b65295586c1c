"""Moving streams in and out of stores: other layouts, and a portable file.

    import_reference_journals   folders of the reference router
    import_journal_layout       folders of our journal store
    export_journal_layout       a data folder that the journal store opens
    export_messages             one file of JSON lines, for anybody
    import_messages             and back
    detect_layout               which of these a path holds

Nothing is overwritten, the source is only read, memory is bounded, and what cannot be read is
counted in the report and left behind.
"""

from syncline.storage.exchange.detect import SourceLayout, detect_layout, import_detected
from syncline.storage.exchange.journal_layout import export_journal_layout, import_journal_layout
from syncline.storage.exchange.portable import export_messages, import_messages
from syncline.storage.exchange.reference import ReferenceMessage, reference_payload
from syncline.storage.exchange.reference_folder import import_reference_journals
from syncline.storage.exchange.report import ExchangeReport, Progress

__all__ = [
    "ExchangeReport",
    "Progress",
    "ReferenceMessage",
    "SourceLayout",
    "detect_layout",
    "export_journal_layout",
    "export_messages",
    "import_detected",
    "import_journal_layout",
    "import_messages",
    "import_reference_journals",
    "reference_payload",
]
