"""electra-lab detect MODEL"""

from electra_lab.cli._texts import Batch, File, Html, Json, Model, Step, Texts, lines_of, show
from electra_lab.cli.run import Device, OnDevice


def detect(
    model: Model,
    texts: Texts = None,
    file: File = None,
    json_: Json = False,
    html: Html = None,
    step: Step = None,
    batch_size: Batch = 32,
    device: OnDevice = Device.auto,
) -> None:
    """Show, for every token of a text, the probability that it was replaced."""
    show("detect", model, step, device, lines_of(texts, file), json_, html, batch_size=batch_size)
