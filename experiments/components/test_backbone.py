from electra_lab.testing import BackboneContract


class TestMyBackbone(BackboneContract):
    name = "my_backbone"
