from electra_lab.testing import SamplerContract


class TestMySampler(SamplerContract):
    name, options = "my_sampler", {"temperature": 0.5}

    def distribution(self, logits):
        return (logits.double() / 0.5).softmax(-1)
