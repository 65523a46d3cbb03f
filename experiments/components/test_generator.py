import torch

from electra_lab.testing import vocabulary
from registry import generators


def test_its_probabilities_add_up_to_one_without_special_tokens():
    words = vocabulary(40)
    generator = generators.get("my_generator").component(words)
    tokens = torch.arange(40).unsqueeze(0)  # [1 V]: each token once
    hidden = generator.hidden(tokens, tokens >= 0, torch.zeros_like(tokens))
    assert hidden.shape == (1, 40, generator.dim)
    logits = generator.token_logits(hidden, torch.zeros(1, 3, dtype=torch.long))
    assert logits.shape == (1, 3, 40)
    probabilities = generator.token_log_probability(hidden, tokens)[0].exp()
    assert probabilities[words.is_special].sum() == 0
    torch.testing.assert_close(probabilities.sum(), torch.tensor(1.0))
