"""The core as a package of its own, for ``pip install``: ``sfast_core``, with the sources of its CUDA extension inside.

ComfyUI and the webuis need none of this.
"""

from setuptools import find_packages, setup

SOURCES = "sfast_core.csrc"

setup(
    packages=[*find_packages(include=["sfast_core", "sfast_core.*"]), SOURCES],
    package_dir={SOURCES: "csrc"},
    package_data={"sfast_core": ["py.typed"], SOURCES: ["*.cu", "*.cuh", "*.h"]},
)
