"""Small files in the formats of the readers."""

import json
from pathlib import Path
from typing import Any

from electra_lab.datasets.squad import Squad

CONTEXT = "Ada was born in London."


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def json_lines(*records: Any) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def answer(text: str, start: int | None = None) -> dict[str, Any]:
    return {"text": text, "answer_start": CONTEXT.index(text) if start is None else start}


def question(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "question": f"Who or what is {name}?", **fields}


def article(*questions: dict[str, Any], title: str = "Ada", context: str = CONTEXT) -> dict[str, Any]:
    return {"title": title, "paragraphs": [{"context": context, "qas": [*questions]}]}


def articles(*found: dict[str, Any]) -> str:
    return json.dumps({"version": "v2.0", "data": [*found]}, ensure_ascii=False, indent=1)


def squad(folder: Path, *questions: dict[str, Any], **options: Any) -> Squad:
    return Squad(validation=write(folder / "dev.json", articles(article(*questions))), **options)
