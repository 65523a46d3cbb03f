"""electra-lab fill MODEL"""

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


def fill(
    model: Model,
    texts: Texts = None,
    file: File = None,
    top: Top = 5,
    json_: Json = False,
    html: Html = None,
    on_error: Wrong = OnError.stop,
    step: Step = None,
    best: Best = False,
    batch_size: Batch = 32,
    device: OnDevice = Device.auto,
) -> None:
    """Fill every [MASK] of a text with the best tokens."""
    show("fill", model, step_of(step, best), device, texts_of(texts, file, on_error), json_, html,
         batch_size=batch_size, top=top)  # fmt: skip
