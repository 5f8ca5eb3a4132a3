"""The version is that of torchcaps beside it, which this package needs; everything else
is said in pyproject.toml.
"""

import re
from pathlib import Path

from setuptools import setup

CORE = Path(__file__).resolve().parents[1] / "torchcaps" / "__init__.py"
(VERSION,) = re.findall(
    r'^__version__ = "(.*)"$', CORE.read_text(encoding="utf-8"), re.MULTILINE
)

setup(
    version=VERSION,
    install_requires=[
        f"torchcaps[hub]=={VERSION}",
        "docstring_parser>=0.15,<1",
        "filelock>=3.20.1",  # before, a lock that is a link emptied its target
        "imagehash>=4.3,<5",
        "jinja2>=3.1,<4",
        "lightning>=2.6.4,<3",  # 2.6.2 and 2.6.3 on PyPI carried malware
        "matplotlib>=3.8,<4",
        "msgspec>=0.19,<1",
        "numpy>=1.26",
        "pillow>=10",
        "pooch>=1.8,<2",
        "pyyaml>=6,<7",
        "scikit-learn>=1.4,<2",
        "scipy>=1.11,<2",
        "tensorboard>=2.16,<3",
        "torchmetrics>=1.4,<2",
        "urllib3>=2.2,<3",
    ],
)
