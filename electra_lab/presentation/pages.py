"""Pages: one file each that loads nothing, no font, no external picture. Only that of a living job has a script."""

import re
import time
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from electra_lab.presentation.charts import DARK, LIGHT, PAPER
from electra_lab.storage.run_directory import UNFINISHED


@dataclass(frozen=True)
class Unfinished:
    """The state of a job whose page is not the last one.

    how    it is `running`, or the way in which it ended too early
    pause  seconds between its last two pages, about as many as until the next one
    """

    how: str
    pause: float = 0.0
    written: float = field(default_factory=time.time)  # seconds since 1970

    @property
    def lives(self) -> bool:
        return self.how == "running"

    @property
    def reload(self) -> int:
        """The seconds after which the page loads itself again."""
        return int(min(max(self.pause, 5), 60))

    @property
    def old(self) -> int:
        """The age in seconds from which the job no longer seems to live."""
        return int(max(600, 5 * self.pause))

    @property
    def clock(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.written))


def render(template: str, **values: Any) -> str:
    """Fill a template of this package; every value is escaped unless the template says otherwise."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    loader = PackageLoader("electra_lab", "presentation")
    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=loader, undefined=StrictUndefined, **options)
    environment.globals |= {"style": Markup(STYLE), "unfinished": None, "mark": Markup(UNFINISHED)}
    environment.filters["breakable"] = breakable
    return environment


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
