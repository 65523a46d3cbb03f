"""Mistakes in a flat YAML file of options."""

from __future__ import annotations

import random
from collections.abc import Iterator

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def mistakes(text: str, dice: random.Random, number: int) -> Iterator[tuple[str, str, str]]:
    """Yield (kind of mistake, key that an answer must name, file)."""
    lines = text.splitlines()
    numbers = [n for n, line in enumerate(lines) if line.split(": ")[1][0].isdigit()]
    for trial in range(number):
        kind = ("a typo", "a value of another type", "a number below zero", "a key twice")[trial % 4]
        place = dice.choice(numbers if kind != "a typo" else range(len(lines)))
        key, value = lines[place].split(": ")
        changed = list(lines)
        if kind == "a typo":
            at = dice.randrange(len(key))
            wrong = key[:at] + dice.choice(LETTERS.replace(key[at], "")) + key[at + 1 :]
            changed[place], key = f"{wrong}: {value}", wrong
        elif kind == "a value of another type":
            changed[place] = f"{key}: {dice.choice(['many', '[1, 2]', '{a: 1}'])}"
        elif kind == "a number below zero":
            changed[place] = f"{key}: -{value if float(value) else 1}"
        else:
            changed.insert(place + 1, f"{key}: {float(value) * 2 + 1:g}")
        yield kind, key, "\n".join(changed) + "\n"
