"""electra-lab fill MODEL"""

from electra_lab.cli._texts import Batch, File, Html, Json, Model, Step, Texts, Top, lines_of, show
from electra_lab.cli.run import Device, OnDevice


def fill(
    model: Model,
    texts: Texts = None,
    file: File = None,
    top: Top = 5,
    json_: Json = False,
    html: Html = None,
    step: Step = None,
    batch_size: Batch = 32,
    device: OnDevice = Device.auto,
) -> None:
    """Fill every [MASK] of a text with the best tokens."""
    show("fill", model, step, device, lines_of(texts, file), json_, html, batch_size=batch_size, top=top)
