"""Laws of corpora."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from electra_lab.testing.common import Contract
from registry import LONGEST, Corpus, Document, Skipped, Split, corpora
from registry.signature import validate


class CorpusContract(Contract):
    """Laws of corpora. Override `options_in` if the corpus reads files that the test must write first."""

    registry = corpora

    def options_in(self, folder: Path) -> Mapping[str, Any]:
        """Return the options, as YAML has them; what they name may be written to an empty folder."""
        return self.options

    def corpus(self, folder: Path) -> Corpus:
        options = validate(self.registry.get(self.name).schema, self.options_in(folder))
        made: Corpus = self.kind(**dict(options))
        return made

    def test_documents_are_what_the_lab_can_use(self, tmp_path: Path) -> None:
        """Texts that are neither empty nor too long, and what the user chose to skip."""
        found = list(self.corpus(tmp_path))
        documents = [each for each in found if not isinstance(each, Skipped)]
        assert documents, "there is no document"
        for each in documents:
            assert isinstance(each, str | Document), f"{type(each)} is not a document"
            document = each if isinstance(each, Document) else Document(each)
            assert document.text.strip(), "a document is empty"
            assert len(document.text) <= LONGEST, f"a document has {len(document.text):,} characters"
            assert document.key is None or isinstance(document.key, str), f"the key {document.key!r} is not text"
            assert document.split in (None, *get_args(Split)), f"{document.split!r} is not a split"

    def test_what_comes_again_came_before(self, tmp_path: Path) -> None:
        seen: set[str] = set()
        for each in self.corpus(tmp_path):
            if isinstance(each, Document) and each.again:
                assert each.text in seen, "a document that comes again did not come before"
            elif not isinstance(each, Skipped):
                seen.add(each.text if isinstance(each, Document) else each)

    def test_documents_are_the_same_each_time(self, tmp_path: Path) -> None:
        corpus = self.corpus(tmp_path)
        once = list(corpus)
        assert list(corpus) == once, "the second reading differs from the first"
        assert list(self.corpus(tmp_path)) == once, "another corpus with the same options has other documents"

    def test_the_fingerprint_is_the_same_each_time(self, tmp_path: Path) -> None:
        corpus = self.corpus(tmp_path)
        before = corpus.fingerprint()
        assert isinstance(before, str)
        assert before
        for _ in corpus:
            pass
        assert corpus.fingerprint() == before, "reading the corpus changed its fingerprint"
        assert self.corpus(tmp_path).fingerprint() == before, "another corpus with the same options has another one"
