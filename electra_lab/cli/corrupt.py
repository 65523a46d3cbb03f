"""electra-lab corrupt MODEL"""

from typing import Annotated

import typer

from electra_lab.cli._texts import (
    Batch,
    Best,
    File,
    Html,
    Json,
    Model,
    OnError,
    Step,
    Texts,
    Top,
    Wrong,
    show,
    step_of,
    texts_of,
)
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
    best: Best = False,
    batch_size: Batch = 32,
    device: OnDevice = Device.auto,
) -> None:
    """Replace tokens of a text by the generator's, and show which ones the discriminator detects."""
    show("corrupt", model, step_of(step, best), device, texts_of(texts, file, on_error), json_, html,
         batch_size=batch_size, mask_prob=mask_prob, temperature=temperature, top=top, seed=seed)  # fmt: skip
