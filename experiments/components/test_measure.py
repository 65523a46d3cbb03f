from electra_lab.testing import MeasureContract


class TestMyMeasure(MeasureContract):
    name = "my_measure"
