"""Several corpora as one."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from registry import Corpus, Document, Skipped, corpora
from registry.component import Component, Of
from registry.signature import Strict


class Part(Strict):
    """A corpus in a mixture."""

    corpus: Annotated[Component, Of(corpora)] = Field(description="The text.")
    repeats: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="How many times its training documents are read."
    )


@corpora.register("mixture")
class Mixture:
    """Several corpora one after the other, the more important ones several times.

    Each part keeps its keys and its splits; the lab splits parts that have none.

    parts  a list of `{corpus: {type: ..., ...}, repeats: 1}`: an epoch reads the training documents of a part
           `repeats` times; held-out documents are read once
    """

    def __init__(self, /, *, parts: Annotated[list[Part], Field(min_length=1)]) -> None:
        self.parts: list[tuple[Corpus, int]] = []
        for part in parts:
            corpus = corpora.get(part.corpus.type).component(**part.corpus.keywords())
            self.parts.append((corpus, part.repeats))

    def __iter__(self) -> Iterator[str | Document | Skipped]:
        for corpus, repeats in self.parts:
            yield from corpus
            for _ in range(repeats - 1):
                for document in corpus:
                    if isinstance(document, str):
                        yield Document(document, again=True)
                    elif isinstance(document, Document):  # skipped pieces count once
                        yield replace(document, again=True)

    def files(self) -> tuple[list[Path], list[Path]]:
        """Return the files of all parts that are read, and those that are passed over."""
        read: dict[Path, None] = {}  # an ordered set
        passed_over: list[Path] = []
        for corpus, _ in self.parts:
            files = getattr(corpus, "files", None)
            if callable(files):
                of_part, ignored = files()
                read.update(dict.fromkeys(of_part))
                passed_over += ignored
        return list(read), [file for file in passed_over if file not in read]

    def changes(self) -> Mapping[str, str]:
        """Return the changes of text that all parts make."""
        first, *others = [getattr(corpus, "changes", dict[str, str])() for corpus, _ in self.parts]
        return first if all(other == first for other in others) else {}

    def fingerprint(self) -> str:
        """Return a hash of the parts' fingerprints and repeats."""
        state = [[corpus.fingerprint(), repeats] for corpus, repeats in self.parts]
        return hashlib.sha256(json.dumps(state).encode()).hexdigest()
