"""electra-lab corrupt MODEL"""

from typing import Annotated

import typer

from electra_lab.cli._texts import Batch, File, Html, Json, Model, OnError, Step, Texts, Top, Wrong, show, texts_of
from electra_lab.cli.run import Device, OnDevice


def corrupt(
    model: Model,
    texts: Texts = None,
    file: File = None,
    mask_prob: Annotated[float, typer.Option(help="Share of the tokens that are masked.")] = 0.15,
    temperature: Annotated[
        float, typer.Option(help="Temperature of the softmax that replacements are drawn from.")
    ] = 1.0,
    top: Top = 5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of masks and draws.")] = 0,
    json_: Json = False,
    html: Html = None,
    on_error: Wrong = OnError.stop,
    step: Step = None,
    batch_size: Batch = 32,
    device: OnDevice = Device.auto,
) -> None:
    """Replace tokens of a text by the generator's, and show which ones the discriminator detects."""
    show("corrupt", model, step, device, texts_of(texts, file, on_error), json_, html, batch_size=batch_size,
          mask_prob=mask_prob, temperature=temperature, top=top, seed=seed)  # fmt: skip
