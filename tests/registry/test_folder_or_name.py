"""A folder is distinguished from a name on the hub where it is written."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from registry.folder_or_name import FolderOrName


@pytest.mark.parametrize("text", ["bert-base-uncased", "google/electra-small-discriminator", "a_b/c.d-1"])
def test_a_name_is_one_unless_it_or_its_first_part_is_there(tmp_path: Path, text: str) -> None:
    assert FolderOrName(text).is_name(tmp_path)
    (tmp_path / text.split("/")[0]).mkdir()
    assert not FolderOrName(text).is_name(tmp_path)


@pytest.mark.parametrize(
    "text", ["", ".", "./a", "../a", "a/", "/a/b", "~/a", "~", "a/b/c", "a b", "a//b", "a/../b", "ä/b", "a\\b", "a\0b"]
)
def test_everything_else_is_a_path(tmp_path: Path, text: str) -> None:
    assert not FolderOrName(text).is_name(tmp_path)


def test_a_schema_takes_text_and_dumps_it_as_plain_text() -> None:
    class Options(BaseModel, strict=True):
        path: FolderOrName | None = None

    read: Any = Options.model_validate_json('{"path": "a/b"}')
    assert type(read.path) is FolderOrName
    assert type(read.model_dump(mode="json")["path"]) is str
    assert Options.model_json_schema()["properties"]["path"]["anyOf"][0] == {"type": "string"}
    with pytest.raises(ValueError, match="string"):
        Options.model_validate_json('{"path": 3}')
