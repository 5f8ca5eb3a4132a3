"""Builds the C++ kernels into the wheel; everything else is said in pyproject.toml.

Without a compiler, or with TORCHCAPS_KERNELS=0, the wheel is one for any machine: the
kernels are then compiled when they are first used, where there is a compiler, and
routing is slower where there is none.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


def compiling() -> ModuleType:
    """``torchcaps/ops/fused/compiling.py``, without the package around it, which needs
    torch.
    """
    path = Path(__file__).parent / "torchcaps" / "ops" / "fused" / "compiling.py"
    spec = importlib.util.spec_from_file_location("compiling", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiler() -> Any:
    """What compiles the kernels; None if they shall not be in the wheel."""
    if sys.platform != "linux" or os.environ.get("TORCHCAPS_KERNELS") == "0":
        return None
    return compiling().find_compiler()


class BuildWithKernels(build_py):
    """The files of the package, and the libraries."""

    def run(self) -> None:
        """Copies and compiles."""
        super().run()
        kernel_compiler = None if self.editable_mode else compiler()
        if kernel_compiler is not None:
            folder = Path(self.build_lib, "torchcaps", "ops", "fused", "built")
            compiling().compile_for_others(kernel_compiler, folder)


class KernelsOrNot(Distribution):
    """Of this kind of machine if it has the kernels."""

    def has_ext_modules(self) -> bool:
        """Whether there are kernels."""
        return compiler() is not None


class WheelWithKernels(bdist_wheel):
    """A wheel for any Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """The kernels know nothing of Python."""
        if self.root_is_pure:
            return "py3", "none", "any"
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(
    distclass=KernelsOrNot,
    cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelWithKernels},
)
