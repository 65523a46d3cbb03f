"""electra-lab detect MODEL"""

from typing import Annotated

import typer

from electra_lab.cli import _texts as given
from electra_lab.cli._items import AsFormat, Reading, read
from electra_lab.cli.run import OnDevice


def detect(
    model: given.Model,
    texts: given.Texts = None,
    file: given.Records = None,
    format: AsFormat = None,
    field: given.Field = None,
    json_: given.Json = False,
    csv_: Annotated[bool, typer.Option("--csv", help="Print a table with a row for each token.")] = False,
    html: given.Html = None,
    on_error: given.Wrong = "stop",
    step: given.Step = None,
    best: given.Best = False,
    batch_size: given.Batch = 32,
    device: OnDevice = "auto",
) -> None:
    """Show, for every token of a text, the probability that it was replaced."""
    incoming = read(texts, file, Reading(on_error, format, field or ()))
    given.show("detect", model, given.step_of(step, best), device, incoming, json_, html, csv_,
         batch_size=batch_size)  # fmt: skip
