from electra_lab.testing import MaskingContract


class TestMyMaskingStrategy(MaskingContract):
    name = "my_masking_strategy"
