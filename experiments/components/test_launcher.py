from electra_lab.testing import LauncherContract


class TestMyLauncher(LauncherContract):
    name = "my_launcher"
