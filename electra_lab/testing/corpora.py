"""Laws of corpora."""

from pathlib import Path
from typing import Any, get_args

from electra_lab.testing.common import ReaderContract
from registry import LONGEST, Corpus, Document, Skipped, Split, corpora


class CorpusContract(ReaderContract):
    """Laws of corpora. Override `options_in` if the corpus reads files that the test must write first."""

    registry = corpora

    def corpus(self, folder: Path) -> Corpus:
        corpus: Corpus = self.opened(self.options_in(folder))
        return corpus

    def content(self, reader: Any) -> list[Any]:
        return list(reader)

    def test_documents_are_what_the_lab_can_use(self, tmp_path: Path) -> None:
        """Texts that are neither empty nor too long, and notes of skipped ones."""
        documents = [item for item in self.corpus(tmp_path) if not isinstance(item, Skipped)]
        assert documents, "there is no document"
        for item in documents:
            assert isinstance(item, str | Document), f"{type(item)} is not a document"
            document = item if isinstance(item, Document) else Document(item)
            assert document.text.strip(), "a document is empty"
            assert len(document.text) <= LONGEST, f"a document has {len(document.text):,} characters"
            assert document.key is None or isinstance(document.key, str), f"the key {document.key!r} is not text"
            assert document.split in (None, *get_args(Split)), f"{document.split!r} is not a split"

    def test_what_comes_again_came_before(self, tmp_path: Path) -> None:
        seen: set[str] = set()
        for item in self.corpus(tmp_path):
            if isinstance(item, Document) and item.again:
                assert item.text in seen, "a document that comes again did not come before"
            elif not isinstance(item, Skipped):
                seen.add(item.text if isinstance(item, Document) else item)

    def test_documents_are_the_same_each_time(self, tmp_path: Path) -> None:
        self.assert_same_content(tmp_path)
