"""Parsed HTML pages for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}


@dataclass
class Node:
    """An element. `text` is all text inside it, `own` the text that is not inside another element."""

    tag: str
    attributes: dict[str, str]
    above: Node | None = None
    below: list[Node] = field(default_factory=list)
    text: str = ""
    own: str = ""

    def all(self, tag: str) -> list[Node]:
        """Return the elements with this tag inside it, in the order of the page."""
        return [found for node in self.below for found in ([node] if node.tag == tag else []) + node.all(tag)]

    def __getitem__(self, name: str) -> str:
        return self.attributes.get(name, "")


class Page(HTMLParser):
    """Checks that tags are closed in order; collects tags, attributes, text, and the rows of tables."""

    def __init__(self, source: Path | str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("", {})
        self._at = self.root
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.parts: list[str] = []
        self.source = source if isinstance(source, str) else source.read_text(encoding="utf-8")
        self.feed(self.source)
        self.close()
        assert self._at is self.root, f"never closed: {self._at.tag}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._at = self._at.below[-1]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = [(name, value or "") for name, value in attrs]
        self.tags.append(tag)
        self.attributes += given
        self._at.below.append(Node(tag, dict(given), self._at))

    def handle_endtag(self, tag: str) -> None:
        assert self._at.above is not None, f"</{tag}> closes nothing"
        assert self._at.tag == tag
        self._at = self._at.above

    def handle_data(self, data: str) -> None:
        if self._at.tag == "style":
            return
        self.parts.append(data)
        self._at.own += data
        node: Node | None = self._at
        while node:
            node.text += data
            node = node.above

    def all(self, tag: str) -> list[Node]:
        return self.root.all(tag)

    @property
    def text(self) -> str:
        return " ".join("".join(self.parts).split())

    @property
    def rows(self) -> list[list[str]]:
        """The texts of all tables' cells, row by row."""
        return [[cell.text for cell in row.below] for row in self.all("tr")]

    def facts(self) -> dict[str, str]:
        """All definition lists, as a mapping from term to description."""
        return dict(zip((node.text for node in self.all("dt")), (node.text for node in self.all("dd")), strict=True))

    def table(self, title: str) -> list[list[str]]:
        """The rows of the table in the region of this title."""
        [region] = [node for node in self.all("div") if node["aria-label"] == title]
        return [[cell.text.strip() for cell in row.below] for row in region.all("tr")]
