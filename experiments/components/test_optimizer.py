from electra_lab.testing import OptimizerContract


class TestMyOptimizer(OptimizerContract):
    name = "my_optimizer"
