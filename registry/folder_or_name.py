"""The type of an option that is a folder, or the name of a model on the Hugging Face hub."""

import os
import re
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


class FolderOrName(str):
    """A folder, relative to the file that wrote it, or a name on the Hugging Face hub: `name`, `organisation/name`."""

    def is_name(self, folder: Path) -> bool:
        """Return True if it can only be meant as a name: neither it nor its first part exists in `folder`."""
        return bool(_NAME.fullmatch(self)) and not os.path.exists(folder / self.partition("/")[0])

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text, plain = core_schema.str_schema(), core_schema.to_string_ser_schema()
        return core_schema.no_info_after_validator_function(cls, text, serialization=plain)
