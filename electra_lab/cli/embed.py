"""electra-lab embed MODEL"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from electra_lab.cli import _texts as options
from electra_lab.cli._items import AsFormat, Reading, read
from electra_lab.cli._streams import answer, is_utf8, stdout
from electra_lab.cli.run import OnDevice
from registry.errors import ConfigError


def embed(
    model: options.Model,
    texts: options.Texts = None,
    file: options.Records = None,
    format: AsFormat = None,
    field: options.Field = None,
    pooling: Annotated[
        Literal["mean", "cls"], typer.Option(help="Mean of all tokens, with [CLS] and [SEP], or the state of [CLS].")
    ] = "mean",
    json_: options.Json = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the vectors to this .npy file.")] = None,
    on_error: options.Wrong = "stop",
    step: options.Step = None,
    best: options.Best = False,
    batch_size: options.Batch = 32,
    device: OnDevice = "auto",
) -> None:
    """Print a vector for each text: its numbers on one line, or with --json in the field `embedding`."""
    import json
    from contextlib import nullcontext
    from operator import itemgetter

    import numpy as np

    from electra_lab.api import load
    from electra_lab.presentation.console import Console

    if out and json_:
        raise ConfigError("give either --json or --out.")
    incoming = read(texts, file, Reading(on_error, format, field or ()))
    console, rows = Console(), list[Any]()
    writing: Any = options.file_of("--out", out, "wb") if out else nullcontext()
    bar = console.progress(0, None, "embed", "texts") if out or not stdout().isatty() else nullcontext()
    with writing as stream, bar:
        pair = load(model, device=device, step=options.step_of(step, best))
        arguments = {"batch_size": batch_size, "pooling": pooling}
        vectors = options.answered(pair, "embed", incoming, itemgetter("text"), **arguments)
        for number, ((_, _, item), vector) in enumerate(vectors, start=1):
            console.advance(number)
            if out:
                rows.append(vector.numpy())
                continue
            numbers = [str(value) for value in vector.numpy()]  # no more digits than float32 has
            if json_:
                embedding, unknown = [*map(float, numbers)], pair.unknown([item["text"]])[0]
                record = {"text": item["text"], "embedding": embedding, "unknown": unknown}
                answer(json.dumps(record, ensure_ascii=not is_utf8()))
            else:
                answer(" ".join(numbers))
        if out:
            np.save(stream, np.array(rows, np.float32).reshape(-1, pair.embeds.dim))
    if out:
        answer(out)
    incoming.end()
