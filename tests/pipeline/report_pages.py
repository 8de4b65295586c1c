"""Pages of the report as tests read them."""

import re
from html.parser import HTMLParser
from pathlib import Path

from syncline.pipeline.report import PAGE_BYTES_MAX, ReportFacts, write_report
from syncline.pipeline.report.facts import Facts, gather, gather_sources
from syncline.pipeline.report.folding import Reader
from tests.pipeline.report_tables import START_MS

VOID = {"meta", "br", "col", "hr", "img", "link"}


class Page(HTMLParser):
    """Checks that what is opened is closed, and keeps the text by element."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(self.text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def row(self, first: str) -> list[str]:
        (found,) = (row for row in self.rows if row and row[0] == first)
        return found

    @property
    def heading(self) -> str:
        return re.search(r"<h1>(.*?)</h1>", self.text).group(1)  # type: ignore[union-attr]


def report_on(root: Path, name: str = "report.html") -> tuple[ReportFacts, Page]:
    path = root.parent / name
    facts = write_report(None, root, path, made_at_ms=START_MS)
    assert facts.byte_count == path.stat().st_size <= PAGE_BYTES_MAX
    assert facts.path == str(path)
    return facts, Page(path)


def facts_of(root: Path) -> Facts:
    return gather(Reader(None), gather_sources(root))
