"""The generator's sizes and options, taken from the discriminator, and `scale`."""

from typing import Any

from electra_lab.config.problems import problem

DEFAULT_SCALE = 0.25  # generator_hidden_size of google-research/electra, a quarter of the width


def scaled_generator(values: dict[str, Any], discriminator: dict[str, Any]) -> dict[str, Any]:
    """Complete the generator's values from the discriminator's.

    A generator of the same type takes over all options. Width and heads are scaled, depth is not (the feed-forward
    width is a multiple of the width, so it scales as well). Explicit sizes are not scaled.
    """
    values = {"type": discriminator["type"], **values}
    scale = values.pop("scale", None)
    explicit = [name for name in ("dim", "heads") if name in values]
    if scale is not None and explicit:
        raise problem(("scale",), f"scale and {explicit[0]} exclude each other; keep one of them.", scale)
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale <= 8):
        raise problem(("scale",), "must be a number above 0 and at most 8.", scale)
    sizes = {name: discriminator[name] for name in ("dim", "depth", "heads")}
    completed = (discriminator if values["type"] == discriminator["type"] else sizes) | values
    if explicit:
        return completed
    wanted = DEFAULT_SCALE if scale is None else scale
    dim, heads = _sizes(wanted, discriminator)
    if dim < 1 or dim % heads:
        raise problem(
            ("scale",) if scale is not None else (),
            f"scale {wanted:g} gives dim {dim} and {heads} heads, which do not divide it. "
            f"The nearest scale that works is {_nearest(wanted, discriminator):g}.",
            wanted,
        )
    return completed | {"dim": dim, "heads": heads}


def without_scale(values: dict[str, Any]) -> dict[str, Any]:
    """Complete the generator's values with placeholders, for an unknown discriminator."""
    heads = values.get("heads", 1)
    return {"depth": 1, "heads": heads, "dim": heads} | {k: v for k, v in values.items() if k != "scale"}


def _sizes(scale: float, discriminator: dict[str, Any]) -> tuple[int, int]:
    return round(scale * discriminator["dim"]), max(1, round(scale * discriminator["heads"]))


def _nearest(scale: float, discriminator: dict[str, Any]) -> float:
    width: int = discriminator["dim"]
    scales = [float(f"{dim / width:g}") for dim in range(1, 8 * width + 1)]  # as printed
    works = [found for found in scales if (sizes := _sizes(found, discriminator))[0] % sizes[1] == 0]
    return min(works, key=lambda found: (abs(found - scale), found))
