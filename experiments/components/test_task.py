from electra_lab.testing import TaskContract


class TestMyTask(TaskContract):
    name = "my_task"
