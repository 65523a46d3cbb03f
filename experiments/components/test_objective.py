from electra_lab.testing import ObjectiveContract


class TestMyObjective(ObjectiveContract):
    name = "my_objective"
