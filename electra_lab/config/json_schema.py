"""JSON schemas (draft 2020-12) of experiment files, for completion and checks in editors.

A schema is permissive: everything that `check` accepts passes, including a file that extends another one. No key is
required, and an option is checked only next to its `type`.
"""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from registry import ALL, LabError

Schema = dict[str, Any]


class Permissive(GenerateJsonSchema):
    """pydantic's schema without required keys and without titles that repeat names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def field_is_required(self, field: Any, total: bool) -> bool:
        return False

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Schema:
        return {}


def file_schema(model: type[BaseModel], kind: str) -> Schema:
    """Return the schema of a kind of file, with the components that are registered now."""
    schema = model.model_json_schema(schema_generator=Permissive, ref_template="#/$defs/{model}")
    schema["properties"]["extends"] = {"type": "string", "description": f"The {kind} file that this one changes."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"electra_lab {kind}",
        "description": "A file of electra_lab. `electra-lab check FILE` checks more than this schema can.",
        **{key: value for key, value in schema.items() if key not in ("title", "description")},
    }


def left_out() -> list[str]:
    """Return a sentence for each component that cannot be loaded and is missing from the schema."""
    sentences: dict[str, None] = {}
    for registry in ALL:
        for name in registry.names():
            try:
                registry.get(name)
            except LabError as error:
                sentences[f"{registry.singular} '{name}' is left out: {error}"] = None
    return list(sentences)
