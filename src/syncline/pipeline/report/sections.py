"""The parts of the page, in order. Each says where its numbers are from, or what to run."""

from syncline.pipeline.report.delivery_sections import (
    delivery_section,
    findings_section,
    latency_section,
    readers_section,
)
from syncline.pipeline.report.facts import Facts
from syncline.pipeline.report.pieces import Section
from syncline.pipeline.report.state_sections import (
    documents_section,
    drift_section,
    history_section,
    storage_section,
    unknown_section,
)


def sections(facts: Facts) -> list[Section]:
    return [
        delivery_section(facts),
        findings_section(facts),
        latency_section(facts),
        readers_section(facts),
        drift_section(facts),
        storage_section(facts),
        documents_section(facts),
        unknown_section(facts),
        history_section(facts),
    ]
