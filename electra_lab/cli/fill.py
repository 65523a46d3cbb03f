"""electra-lab fill MODEL"""

from electra_lab.cli import _texts as given
from electra_lab.cli._items import AsFormat
from electra_lab.cli.run import OnDevice


def fill(
    model: given.Model,
    texts: given.Texts = None,
    file: given.Records = None,
    format: AsFormat = None,
    field: given.Field = "text",
    top: given.Top = 5,
    json_: given.Json = False,
    html: given.Html = None,
    on_error: given.Wrong = "stop",
    step: given.Step = None,
    best: given.Best = False,
    batch_size: given.Batch = 32,
    device: OnDevice = "auto",
) -> None:
    """Fill every [MASK] of a text with the best tokens."""
    incoming = given.texts_of(texts, file, on_error, format, field)
    given.show("fill", model, given.step_of(step, best), device, incoming, json_, html,
         batch_size=batch_size, top=top)  # fmt: skip
