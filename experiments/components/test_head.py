from electra_lab.testing import HeadContract


class TestMyHead(HeadContract):
    name = "my_head"
