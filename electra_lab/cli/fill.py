"""electra-lab fill MODEL"""

from electra_lab.cli import _texts as given
from electra_lab.cli._items import AsFormat, Reading, read
from electra_lab.cli.run import OnDevice


def fill(
    model: given.Model,
    texts: given.Texts = None,
    file: given.Records = None,
    format: AsFormat = None,
    field: given.Field = None,
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
    incoming = read(texts, file, Reading(on_error, format, field or ()))
    given.show("fill", model, given.step_of(step, best), device, incoming, json_, html,
         batch_size=batch_size, top=top)  # fmt: skip
