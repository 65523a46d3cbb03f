"""electra-lab fill MODEL"""

from electra_lab.cli import _texts as options
from electra_lab.cli._items import AsFormat, Reading, read
from electra_lab.cli.run import OnDevice


def fill(
    model: options.Model,
    texts: options.Texts = None,
    file: options.Records = None,
    format: AsFormat = None,
    field: options.Field = None,
    top: options.Top = 5,
    json_: options.Json = False,
    html: options.Html = None,
    on_error: options.Wrong = "stop",
    step: options.Step = None,
    best: options.Best = False,
    batch_size: options.Batch = 32,
    device: OnDevice = "auto",
) -> None:
    """Fill every [MASK] of a text with the best tokens."""
    incoming = read(texts, file, Reading(on_error, format, field or ()))
    options.show("fill", model, options.step_of(step, best), device, incoming, json_, html,
         batch_size=batch_size, top=top)  # fmt: skip
