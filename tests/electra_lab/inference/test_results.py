"""Results show the text as it was given, in a notebook, on a terminal and as data."""

import json
import re

import pytest
from rich.console import Console

from electra_lab.inference.results import Candidate, Corrupted, Detected, Filled, Results
from tests.pages import Page

TEXT = "The <b> cat\nsat"
OFFSETS = [(0, 3), (4, 7), (8, 11), (12, 15)]
DETECTED = Detected(TEXT, ["the", "<b>", "cat", "sat"], OFFSETS, [0.0, 0.25, 1.0, 0.05])
CORRUPTED = Corrupted(
    TEXT, ["the", "<b>", "cat", "sat"], OFFSETS, ["the", "<b>", "##dog", "sat"], [False, False, True, True], {2: "dog"},
    {2: [Candidate("dog", 0.75, " dog"), Candidate("cat", 0.125, " cat")], 3: [Candidate("sat", 0.5, " sat")]},
    [0.0, 0.6, 0.9, 0.1],
)  # fmt: skip
NICE = [[Candidate("nice", 0.5, " nice")], [Candidate("##s", 0.25, "s")]]
FILLED = Filled("a [MASK]ly [MASK]", [(2, 8), (11, 17)], NICE)


def text_of(html: str) -> str:
    """Return the text of a result without struck-out parts."""
    kept = re.sub(r"<s\b[^>]*>.*?</s>", "", html).replace("<br>", "\n")
    return "".join(Page(kept).parts).replace("\xa0", "")


def printed(result: object, *, colour: bool) -> str:
    console = Console(width=200, color_system="truecolor" if colour else None, force_terminal=colour, highlight=False)
    with console.capture() as captured:
        console.print(result)
    return captured.get()


def test_a_notebook_shows_the_text_with_stronger_colours_for_stronger_suspicion() -> None:
    html = DETECTED._repr_html_()
    spans = [span for span in Page(html).all("span") if span["title"]]
    assert text_of(html) == TEXT
    assert [span["title"] for span in spans] == ["the: 0.000", "<b>: 0.250", "cat: 1.000", "sat: 0.050"]
    colours = [float(re.findall(r"rgba\([^)]*, *([\d.]+)\)", span["style"])[0]) for span in spans]
    assert sorted(colours) == [colours[i] for i in (0, 3, 1, 2)]
    assert colours[0] == 0.0
    assert text_of(Results([DETECTED, FILLED])._repr_html_()) == f"{TEXT}a nicelys"
    # A replacement is shown next to the struck-out original, with its candidates.
    html = CORRUPTED._repr_html_()
    titles = [span["title"] for span in Page(html).all("span") if span["title"]]
    assert (text_of(html), [part.text for part in Page(html).all("s")]) == ("The <b> dog\nsat", ["cat"])
    assert titles[2:] == ["##dog: 0.900; dog 0.75, cat 0.12", "sat: 0.100; sat 0.50"]
    assert CORRUPTED.replaced == [False, False, True, False]


def test_a_terminal_shows_every_probability_and_a_log_the_same_without_colour() -> None:
    assert str(DETECTED) == "The 0.00 <b> 0.25 cat 1.00\nsat 0.05"
    assert str(CORRUPTED) == "The <b> 0.60 [cat > dog 0.90]\nsat"
    assert str(FILLED) == "a nicelys\n    nice 0.50\n    ##s 0.25"
    for result in (DETECTED, FILLED):
        assert printed(result, colour=False) == f"{result}\n"
    coloured = printed(DETECTED, colour=True)
    assert "48;2;208;52;44mcat" in coloured  # the strongest suspicion
    assert "The" in coloured.split("\x1b")[0]  # no suspicion, no colour
    assert "\x1b[2;9mcat" in printed(CORRUPTED, colour=True)


def test_what_is_not_a_character_of_its_own_is_not_shown_unless_it_is_replaced() -> None:
    """Byte-level tokenizers put a space before the first word; the first letter gets the verdict of its own token."""
    found = Detected("a🐈b", ["a", "x", "y", "b"], [(0, 1), (1, 2), (1, 2), (2, 3)], [0.1, 0.2, 0.3, 0.4])
    assert text_of(found._repr_html_()) == "a🐈b"
    given = "zoo", ["\u0120", "zoo"], [(0, 0), (0, 3)]
    assert str(Detected(*given, [0.9, 0.2])) == "zoo 0.20"
    assert str(Corrupted(*given, ["\u0120", "zoo"], [True, False], {}, {}, [0.9, 0.2])) == "zoo"
    assert str(Corrupted(*given, ["\u0120a", "zoo"], [True, False], {0: " a"}, {}, [0.9, 0.2])) == "a 0.90 zoo"


@pytest.mark.parametrize(
    ("text", "written", "filled"),
    [
        ("the [MASK] sat", [" cat"], "the cat sat"),
        ("the[MASK] sat", [" cat"], "the cat sat"),
        ("[MASK] sat", [" cat"], "cat sat"),
        ("(see [MASK])", [" cat"], "(see cat)"),
        ("([MASK])", [" cat"], "(cat)"),
        ("the cat [MASK] sat", ["s"], "the cats sat"),
        ("[MASK][MASK]", [" the", " cat"], "the cat"),
        ("the [MASK]", ["\n"], "the\n"),
    ],
)
def test_a_mask_is_filled_with_one_space_where_a_word_begins(text: str, written: list[str], filled: str) -> None:
    places = [i for i in range(len(text)) if text.startswith("[MASK]", i)]
    best = [[Candidate("glyphs", 0.5, name)] for name in written]
    assert Filled(text, [(i, i + 6) for i in places], best).filled == filled


def test_people_read_tokens_without_the_marks_of_bytes() -> None:
    given = (("\u0120caf\xc3\xa9", " caf\xe9"), ("##s", "s"), ("\u010a", "\n"))
    assert [Candidate(token, 0.5, written).name for token, written in given] == ["caf\xe9", "##s", r"'\n'"]


def test_results_are_plain_data() -> None:
    detected, corrupted, filled = (json.loads(json.dumps(answer.as_dict())) for answer in (DETECTED, CORRUPTED, FILLED))
    assert [answer["text"] for answer in (detected, corrupted, filled)] == [TEXT, TEXT, FILLED.text]
    assert detected["probabilities"] == [0.0, 0.25, 1.0, 0.05]
    assert corrupted["replaced"] == [False, False, True, False]
    assert filled["filled"] == FILLED.filled == "a nicelys"


@pytest.mark.parametrize("empty", [Detected("", [], [], []), Filled("a", [], [])])
def test_a_text_without_tokens_can_be_shown(empty: Detected | Filled) -> None:
    assert text_of(empty._repr_html_()) == str(empty) == empty.text


def test_figures_do_not_run_into_the_next_token() -> None:
    genome = Detected("GCA t.", ["G", "C", "A", "t", "."], [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6)], [0.11] * 5)
    assert str(genome) == genome.__rich__().plain == "G 0.11 C 0.11 A 0.11 t 0.11 . 0.11"
    assert genome._repr_html_().count("GCA") == 0  # each has its colour
    assert text_of(genome._repr_html_()) == genome.text
