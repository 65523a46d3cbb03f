"""Pages: one file each that loads nothing, no script, no font, no external picture."""

import re
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from electra_lab.presentation.charts import DARK, LIGHT, PAPER


def render(template: str, **values: Any) -> str:
    """Fill a template of this package; every value is escaped unless the template says otherwise."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    loader = PackageLoader("electra_lab", "presentation")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.globals["style"] = Markup(STYLE)
    made.filters["breakable"] = breakable
    return made


def breakable(text: str) -> str:
    """Allow line breaks in labels of variants, between their changes."""
    return text if isinstance(text, Markup) else Markup(re.sub(r"([,=])(?=\S)", r"\1<wbr>", str(escape(text))))


def _style() -> str:
    style = files("electra_lab.presentation").joinpath("style.css").read_text(encoding="utf-8")
    for scheme, colours in (("light", LIGHT), ("dark", DARK)):
        series = " ".join(f"--series-{i}: {colour};" for i, colour in enumerate(colours))
        style = style.replace(f"$paper-{scheme}", PAPER[scheme]).replace(f"$series-{scheme}", series)
    return style


STYLE = _style()
