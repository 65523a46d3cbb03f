"""Long texts as several documents."""

from registry.contracts.corpus import LONGEST


def pieces(text: str) -> list[str]:
    """Return a text as documents without white space around them: one, several if it is too long, or none."""
    found, rest = cut(text)
    rest = rest.rstrip()
    return [*found, rest] if rest else found


def cut(text: str) -> tuple[list[str], str]:
    """Cut documents of at most LONGEST characters off a text that may go on, at white space if there is some.

    The rest has at most LONGEST characters.
    """
    found = []
    while len(text := text.lstrip()) > LONGEST:
        head = text[: LONGEST + 1]
        words = head.rsplit(None, 1)
        end = LONGEST if head[-1].isspace() or len(words) == 1 else len(words[0])
        found.append(head[:end].rstrip())
        text = text[end:]
    return found, text
