"""electra-lab detect MODEL"""

from typing import Annotated

import typer

from electra_lab.cli import _texts as options
from electra_lab.cli._items import AsFormat, Reading, read
from electra_lab.cli.run import OnDevice


def detect(
    model: options.Model,
    texts: options.Texts = None,
    file: options.Records = None,
    format: AsFormat = None,
    field: options.Field = None,
    json_: options.Json = False,
    csv_: Annotated[bool, typer.Option("--csv", help="Print a table with a row for each token.")] = False,
    html: options.Html = None,
    on_error: options.Wrong = "stop",
    step: options.Step = None,
    best: options.Best = False,
    batch_size: options.Batch = 32,
    device: OnDevice = "auto",
) -> None:
    """Show, for every token of a text, the probability that it was replaced."""
    incoming = read(texts, file, Reading(on_error, format, field or ()))
    options.show("detect", model, options.step_of(step, best), device, incoming, json_, html, csv_,
         batch_size=batch_size)  # fmt: skip
