"""The parameters that generator and discriminator share."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field

from registry.signature import Strict, problem, validate

Name = Literal["none", "tokens", "embeddings", "all", "gradient_disentangled"]


class TieLayers(Strict):
    """The embeddings, their projection, and the lowest layers of both networks."""

    layers: Annotated[int, Field(ge=1, le=1000)] = Field(description="Number of layers that both networks share.")

    def __str__(self) -> str:
        """As YAML has it."""
        return f"{{layers: {self.layers}}}"


def one_of_both(value: Any) -> Any:
    """Validate what was written, a name or a mapping, so that errors are about that alone."""
    if isinstance(value, dict):
        return validate(TieLayers, value)
    if not isinstance(value, TieLayers) and value not in get_args(Name):
        raise problem((), f"must be one of {', '.join(get_args(Name))}, or {{layers: ...}}; is {value!r}.", value)
    return value


Tie = Annotated[Name | TieLayers, BeforeValidator(one_of_both)]
