"""The command line in this process."""

from tests.electra_lab.cli.conftest import lab

__all__ = ["lab"]
