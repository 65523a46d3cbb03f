"""Several corpora as one."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

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

    Each part keeps its keys and splits: one that brings splits is used as it is, the others are split by the lab.

    parts  a list of `{corpus: {type: ..., ...}, repeats: 1}`: an epoch reads the training documents of a part
           `repeats` times; held-out documents are read once
    """

    def __init__(self, /, *, parts: Annotated[list[Part], Field(min_length=1)]) -> None:
        self.parts: list[tuple[Corpus, int]] = [
            (corpora.get(part.corpus.type).component(**part.corpus.keywords()), part.repeats) for part in parts
        ]

    def __iter__(self) -> Iterator[str | Document | Skipped]:
        for corpus, repeats in self.parts:
            yield from corpus
            for _ in range(repeats - 1):
                for each in corpus:
                    if not isinstance(each, Skipped):  # those are counted once
                        yield replace(each if isinstance(each, Document) else Document(each), again=True)

    def files(self) -> tuple[list[Path], list[Path]]:
        """Return the files of all parts, those that are read and those that are passed over."""
        members: list[Any] = [corpus for corpus, _ in self.parts]
        parts = [corpus.files() for corpus in members if callable(getattr(corpus, "files", None))]
        read = dict.fromkeys(file for files, _ in parts for file in files)
        return list(read), [file for _, files in parts for file in files if file not in read]

    def fingerprint(self) -> str:
        """A hash of the parts' fingerprints and repeats."""
        state = [[corpus.fingerprint(), repeats] for corpus, repeats in self.parts]
        return hashlib.sha256(json.dumps(state).encode()).hexdigest()
