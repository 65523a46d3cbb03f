"""The split of a document depends on its key alone."""

from collections import Counter

from electra_lab.data.splits import number_of, split_of


def test_the_share_is_halved_between_validation_and_test() -> None:
    """Within five standard deviations."""
    found = Counter(split_of(f"text {n}".encode(), 0.2) for n in range(20_000))
    assert 0.0894 < found["validation"] / 20_000 < 0.1106
    assert 0.0894 < found["test"] / 20_000 < 0.1106


def test_a_larger_share_only_adds_to_what_is_held_out() -> None:
    texts = [f"text {n}".encode() for n in range(2000)]
    few, many = ({t for t in texts if split_of(t, share) != "train"} for share in (0.1, 0.3))
    assert few < many


def test_the_numbers_never_change() -> None:
    """Otherwise held-out text of earlier runs would be trained on."""
    known = {b"": 16476032584258269876, b"json": 140876128840170106, b"torch.nn": 4653962739856107080}
    assert {key: number_of(key) for key in known} == known
