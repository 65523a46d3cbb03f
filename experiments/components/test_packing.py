from electra_lab.testing import PackingContract


class TestMyPacking(PackingContract):
    name = "my_packing"
