"""What pyproject.toml cannot say: the folder `experiments` is installed as `electra_lab.experiments`."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["electra_lab*", "registry*"]), "electra_lab.experiments"],
    package_dir={"electra_lab.experiments": "experiments"},
)
