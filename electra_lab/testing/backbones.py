"""Laws of backbones."""

from typing import Any

import pytest
import torch
from torch import Tensor

from electra_lab.model.flops import backbone_flops, counted_flops
from electra_lab.model.network import Embeddings, Network, initialise
from electra_lab.testing.common import PAD, Contract, token_rows, worst
from electra_lab.training.random import seed_global
from registry import backbones


class BackboneContract(Contract):
    """Laws of backbones.

    sizes    (dim, depth, heads)
    lengths  lengths of rows
    """

    registry = backbones
    sizes = (32, 2, 2)
    lengths = (16, 13)

    def network(self, device: str, *, size: int = 40) -> Network:
        """Return the backbone inside the lab's embeddings, seeded, in eval mode."""
        dim, depth, heads = self.sizes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            backbone: Any = self.component()(dim, depth, heads, 64)
            embeddings = Embeddings.of(backbone, size, dim, 64, 0.0)
            network = Network(embeddings, backbone, dim, pad_id=PAD)
            initialise(network, keep=set(backbone.parameters()))
            for parameter in network.parameters():  # away from symmetric points such as zero biases and gates
                parameter.data += 0.1 * torch.randn_like(parameter)
        return network.to(device).eval()

    def test_contract(self, device: str) -> None:
        """States have the right shape and type, and the backbone the attributes of its contract."""
        network = self.network(device)
        backbone: Any = network.backbone
        assert backbone.positions in ("lab", "own")
        assert backbone.length_multiple >= 1
        assert len(backbone.layers) == self.sizes[1]
        for layer in backbone.layers:
            assert {*layer.parameters()} <= {*backbone.parameters()}, "layers must be the backbone's own modules"
        backbone.at_step(0, 1)
        for length in self.lengths:
            states = self.states(network, token_rows(3, length, 40, device))
            assert states.shape == (3, length, self.sizes[0])
            assert states.dtype == torch.float32
            assert states.isfinite().all()

    def test_what_padding_holds_never_matters(self, device: str) -> None:
        """Neither the tokens in the padding nor the vectors that a backbone receives there.

        Every number of real tokens is tried, on the left and on the right: all of them together, and some alone.
        """
        network = self.network(device)
        backbone: Any = network.backbone
        length = max(self.lengths) + -max(self.lengths) % backbone.length_multiple
        left = torch.arange(length, device=device) < torch.arange(1, 16, device=device).unsqueeze(1)
        masks = torch.cat([left, left.flip(1)])  # [30, length]
        alone = [mask.unsqueeze(0) for mask in masks[2::9]]
        for seed, mask in enumerate([masks, masks, masks, *alone]):
            generator = torch.Generator().manual_seed(seed)
            x, noise = torch.randn(2, len(mask), length, self.sizes[0], generator=generator).to(device)
            with torch.no_grad():
                clean, noisy = backbone(x, mask), backbone(torch.where(mask.unsqueeze(-1), x, noise), mask)
            assert torch.equal(clean[mask], noisy[mask]), worst(clean * mask.unsqueeze(-1), noisy * mask.unsqueeze(-1))

    def test_a_result_does_not_depend_on_what_else_is_in_the_batch(self, device: str) -> None:
        """Each row has the states that it has alone, among rows of its length, and of shorter and longer ones."""
        network, tokens = self.network(device), token_rows(6, 40, 40, device)
        for lengths in ([13] * 6, [40, 3, 13, 30, 16, 1], [2, 17, 9, 5, 32, 24]):
            mask = torch.arange(max(lengths), device=device) < torch.tensor(lengths, device=device).unsqueeze(1)
            together = self.states(network, tokens[:, : max(lengths)], mask)
            for row, length in enumerate(lengths):
                among, alone = together[row, :length], self.states(network, tokens[row : row + 1, :length])[0]
                largest = alone.abs().max().clamp(min=1e-9)  # a cloze of a single token is zero
                ratio = float((among - alone).abs().max() / largest)
                assert ratio <= 1e-5, f"{ratio:.2g} of the largest state of {length} tokens; {worst(among, alone)}"

    def test_positions_matter(self, device: str) -> None:
        """Another order of the words gives other states, not the same ones in another order."""
        network = self.network(device)
        tokens = token_rows(2, 16, 40, device)
        order = torch.randperm(16, generator=torch.Generator().manual_seed(1)).to(device)
        moved = (self.states(network, tokens)[:, order] - self.states(network, tokens[:, order])).abs().max()
        assert moved > 1e-2, f"the states of reordered words differ by {float(moved):.2g} only"

    def test_context_matters(self, device: str) -> None:
        """A token's state depends on the other tokens, in both directions."""
        network = self.network(device)
        tokens = token_rows(1, 16, 40, device)
        for changed, watched in ((0, slice(1, 16)), (15, slice(0, 15))):
            other = tokens.clone()
            other[0, changed] = (other[0, changed] + 7 - 5) % 35 + 5
            difference = (self.states(network, tokens) - self.states(network, other)).abs()
            largest = float(difference[:, watched].max())
            assert largest > 1e-4, f"another token at {changed} changes the other states by {largest:.2g} only"

    def test_a_cloze_does_not_see_the_token(self, device: str) -> None:
        """No state depends on the token at its own position, if the backbone declares that."""
        if not self.declared("cloze"):
            pytest.skip("this backbone does not declare that its states are a cloze")
        network, tokens = self.network(device), token_rows(2, 16, 40, device)
        for place in range(16):
            other = tokens.clone()
            other[:, place] = (tokens[:, place] + 7 - 5) % 35 + 5
            states, changed = (self.states(network, text)[:, place] for text in (tokens, other))
            assert torch.equal(states, changed), f"at {place}: {worst(states, changed)}"

    def test_every_parameter_learns(self, device: str) -> None:
        network = self.network(device).train()
        seed_global(0, 0)
        tokens = token_rows(4, 16, 40, device)
        states = network.hidden(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens))
        weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(0)).to(device)
        (states * weights).sum().backward()  # type: ignore[no-untyped-call]
        idle = [n for n, p in network.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
        assert not idle, f"no gradient reaches {idle}"

    def test_rows_of_padding_alone_are_harmless(self, device: str) -> None:
        """Finite states and gradients, also for the other rows, and where documents are separated."""
        network, tokens = self.network(device), token_rows(3, 16, 40, device)
        mask = torch.ones_like(tokens, dtype=torch.bool)
        mask[1] = mask[2, 11:] = False
        documents = (torch.arange(16, device=device) >= 9).long().expand_as(tokens).masked_fill(~mask, -1)
        for separated in (None, documents) if network.separates_documents else (None,):
            assert self.states(network.eval(), tokens, mask, separated).isfinite().all()
            seed_global(0, 0)
            states = network.train().hidden(tokens, mask, torch.zeros_like(tokens), separated)
            assert states.isfinite().all()
            states[mask].sum().backward()  # type: ignore[no-untyped-call]
            assert all(p.grad.isfinite().all() for p in network.parameters() if p.grad is not None)

    def test_evaluation_is_a_function_of_its_input(self, device: str) -> None:
        """The global generator plays no part and is left as it was."""
        network, tokens = self.network(device), token_rows(4, 16, 40, device)
        torch.manual_seed(0)
        once = self.states(network, tokens)
        after = torch.rand(1)
        torch.manual_seed(0)
        assert torch.equal(torch.rand(1), after), "evaluation moved torch's global generator"
        torch.manual_seed(1)
        again = self.states(network, tokens)
        assert torch.equal(once, again), worst(once, again)

    def test_flops_formula_agrees_with_torch(self) -> None:
        """Within one percent of torch's counter (which also sees a few tiny products, such as rotary angles)."""
        network = self.network("cpu")
        backbone: Any = network.backbone
        if not hasattr(backbone, "flops"):
            pytest.skip("this backbone has no formula; the lab counts")
        for least, rows in ((32, 1), (64, 1), (32, 5)):
            length = least + -least % backbone.length_multiple
            counted = counted_flops(backbone, length, self.sizes[0], rows)
            formula = backbone_flops(backbone, length, self.sizes[0], rows)
            assert formula == pytest.approx(counted, rel=0.01), f"at length {length}, for {rows} rows"

    def test_states_of_inner_layers(self, device: str) -> None:
        """Those of a shallower backbone with the same weights; below them, gradients pass or do not, as asked."""
        network = self.network(device)
        backbone: Any = network.backbone
        if not backbone.inner_states:
            pytest.skip("this backbone does not return the states of inner layers")
        dim, depth, heads = self.sizes
        tokens, places = token_rows(2, 13, 40, device), torch.arange(13, device=device)
        inputs = tokens, (places < 11).expand_as(tokens), torch.zeros_like(tokens)
        documents = (places >= 6).long().masked_fill(places >= 11, -1).expand_as(tokens)
        for separated in (None, documents) if network.separates_documents else (None,):
            with torch.no_grad():
                at_depths = network.hidden_at((depth, *range(1, depth)), *inputs, separated)
                assert torch.equal(at_depths[0], network.hidden(*inputs, separated)), "the top differs from `hidden`"
            for number, states in enumerate(at_depths[1:], 1):
                shallow: Any = self.component()(dim, number, heads, 64)
                weights = {
                    name: backbone.state_dict()[name][: len(value)] for name, value in shallow.state_dict().items()
                }
                shallow.load_state_dict(weights)
                ended = Network(network.embeddings, shallow.to(device), dim, pad_id=PAD).eval()
                alone = self.states(ended, *inputs[:2], separated)
                ratio = float((states - alone).abs().max() / alone.abs().max())
                assert ratio <= 1e-5, f"at depth {number}: {worst(states, alone)}"
        for detach in (False, True):
            network.zero_grad()
            network.hidden_at((1, depth), *inputs, detach=detach)[1].square().sum().backward()  # type: ignore[no-untyped-call]
            below, above = ([*backbone.layers[number].parameters()] for number in (0, -1))
            assert any(p.grad is not None and p.grad.any() for p in above)
            assert detach == all(p.grad is None for p in below)

    def test_documents_do_not_see_each_other(self, device: str) -> None:
        """The states of a document do not depend on its neighbours in the row, nor on its place there."""
        network = self.network(device)
        if not network.separates_documents:
            pytest.skip("this backbone does not claim to separate documents")
        tokens, places = token_rows(2, 16, 40, device), torch.arange(16, device=device)
        parts = slice(0, 5), slice(5, 9), slice(9, 14)  # two positions of padding behind
        mask = (places < 14).expand_as(tokens)
        documents = ((places >= 5).long() + (places >= 9)).masked_fill(places >= 14, -1).expand_as(tokens)
        states = self.states(network, tokens, mask, documents)
        for number, part in enumerate(parts):
            other = torch.where(documents == number, tokens, (tokens - 5 + 7) % 35 + 5)
            same = self.states(network, other, mask, documents)
            assert torch.equal(states[:, part], same[:, part]), worst(states[:, part], same[:, part])
            alone = self.states(network, tokens[:, part])
            ratio = float((states[:, part] - alone).abs().max() / alone.abs().max())
            assert ratio <= 1e-5, f"alone in a row: {worst(states[:, part], alone)}"

    @staticmethod
    def states(network: Network, tokens: Tensor, mask: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        with torch.no_grad():
            return network.hidden(tokens, mask, torch.zeros_like(tokens), documents)
