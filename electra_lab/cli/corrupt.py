"""electra-lab corrupt MODEL"""

from typing import Annotated

import typer

from electra_lab.cli import _texts as options
from electra_lab.cli._items import AsFormat, Reading, read
from electra_lab.cli.run import OnDevice


def corrupt(
    model: options.Model,
    texts: options.Texts = None,
    file: options.Records = None,
    format: AsFormat = None,
    field: options.Field = None,
    mask_prob: Annotated[float, typer.Option(help="Share of the tokens to mask.")] = 0.15,
    temperature: Annotated[float, typer.Option(help="Temperature of the softmax for replacements.")] = 1.0,
    top: options.Top = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of masks and draws.")] = 0,
    json_: options.Json = False,
    html: options.Html = None,
    on_error: options.Wrong = "stop",
    step: options.Step = None,
    best: options.Best = False,
    batch_size: options.Batch = 32,
    device: OnDevice = "auto",
) -> None:
    """Replace tokens of a text by draws from the generator, and show which of them the discriminator detects."""
    incoming = read(texts, file, Reading(on_error, format, field or ()))
    options.show("corrupt", model, options.step_of(step, best), device, incoming, json_, html,
         batch_size=batch_size, mask_prob=mask_prob, temperature=temperature, top=top, seed=seed)  # fmt: skip
