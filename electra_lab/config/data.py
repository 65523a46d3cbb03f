"""The section `data` of an experiment file."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from registry.signature import Strict


class Data(Strict):
    """The rows that are cut from the corpus."""

    sequence_length: Annotated[int, Field(ge=8)] = Field(128, description="Tokens per row, [CLS] and [SEP] included.")
    held_out: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05,
        description="Share of the documents that are held out: half for validation, half for the test. Ignored if the "
        "corpus has its own splits.",
    )
    split: Literal["by_order"] | None = Field(
        None,
        description="How held-out documents are chosen. If null, by a hash of their keys. by_order: the last "
        "documents, for text in chronological order.",
    )
    overlap: Annotated[float, Field(ge=0, le=1)] = Field(
        0.1, description="Drop a training document if held-out text contains more than this share of its 13-grams."
    )
    tokenizer_characters: Annotated[float, Field(ge=1000)] = Field(
        3e7, description="Maximum number of training characters that the tokenizer is trained on."
    )
    group_by_length: bool = Field(
        False, description="Batch rows of similar lengths together, and cut each batch to its longest row. For "
        "packings with padded rows: documents, segments.",
    )  # fmt: skip
    engine: Literal["auto", "tokenizers"] = Field(
        "auto", description="No effect; accepted for older files. The tokenizers library tokenizes all text."
    )
    store: Path = Field(Path("runs/.store"), description="Folder of the tokenized corpora. Runs share it.")
