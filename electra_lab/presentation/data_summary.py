"""Sentences about the data and the compute of a run, on the terminal and on pages."""

from collections.abc import Iterator

from electra_lab.data.overlap import RUN
from electra_lab.storage.provenance import Data


def data_facts(data: Data) -> Iterator[tuple[str, str]]:
    """Yield what a run knows of its data, each with a title.

    data     13,010 documents, 1,402,118 tokens to train; validation 341 and 42,013; test 377 and 40,120
    overlap  1.3% of the 13-token runs of validation and test also occur in training text
    """
    documents, tokens = data.documents, data.tokens
    if documents and tokens:
        held_out = (f"; {split} {documents[split]:,} and {tokens[split]:,}" for split in ("validation", "test"))
        yield "data", f"{documents['train']:,} documents, {tokens['train']:,} tokens to train{''.join(held_out)}"
    if data.overlap is not None:
        share = f"{data.overlap:.1%} of the {RUN}-token runs of validation and test"
        yield "overlap", f"{share} also occur in training text"


def compute(flops: float, paper_flops: float | None) -> str:
    """Return the FLOPs of a training in both conventions; older runs know one."""
    other = "" if paper_flops is None else f"; {paper_flops:.3g} as the ELECTRA paper counts"
    return f"{flops:.3g} FLOPs in total{other}"
