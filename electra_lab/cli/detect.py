"""electra-lab detect MODEL"""

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
    Wrong,
    show,
    step_of,
    texts_of,
)
from electra_lab.cli.run import Device, OnDevice


def detect(
    model: Model,
    texts: Texts = None,
    file: File = None,
    json_: Json = False,
    html: Html = None,
    on_error: Wrong = OnError.stop,
    step: Step = None,
    best: Best = False,
    batch_size: Batch = 32,
    device: OnDevice = Device.auto,
) -> None:
    """Show, for every token of a text, the probability that it was replaced."""
    show("detect", model, step_of(step, best), device, texts_of(texts, file, on_error), json_, html,
         batch_size=batch_size)  # fmt: skip
