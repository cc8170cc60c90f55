"""``pyproject.toml`` as ComfyUI's registry takes it (docs.comfy.org/registry/specifications), and as ComfyUI and its
command line read it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sfast_core import __version__

ROOT = Path(__file__).resolve().parent.parent
#: Every field that is documented; one that isn't would be left out without a word: what pip alone reads.
PROJECT = {
    "name",
    "version",
    "description",
    "readme",
    "license",
    "requires-python",
    "dependencies",
    "classifiers",
    "urls",
    "dynamic",
}
OF_PIP = {"optional-dependencies"}
COMFY = {"PublisherId", "DisplayName", "Icon", "Banner", "Models", "includes", "web", "requires-comfyui"}
SYSTEMS = ("Microsoft", "POSIX", "MacOS", "OS Independent")
ACCELERATORS = {
    "GPU :: NVIDIA CUDA",
    "GPU :: AMD ROCm",
    "GPU :: Intel Arc",
    "NPU :: Huawei Ascend",
    "GPU :: Apple Metal",
}
VERSIONS = re.compile(r"(==|>=|<=|!=|~=|>|<|<>|=)\s*\d+\.\d+\.\d+(-[a-zA-Z0-9]+)?")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """The file."""
    reader = pytest.importorskip("tomllib", reason="needs Python 3.11")
    parsed: dict[str, Any] = reader.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return parsed


def test_only_documented_fields(found: dict[str, Any]) -> None:
    assert set(found["project"]) <= PROJECT | OF_PIP and set(found["tool"]["comfy"]) <= COMFY


def test_the_name_is_an_id(found: dict[str, Any]) -> None:
    """Less than 100 characters, begins with a letter, no two special ones side by side, without ComfyUI in it."""
    name = found["project"]["name"]
    assert re.fullmatch(r"[a-z][a-z0-9]*([-_.][a-z0-9]+)*", name) and len(name) < 100 and "comfy" not in name


def test_the_version(found: dict[str, Any]) -> None:
    """Three numbers, with a section of its own in the changelog."""
    version = found["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version) and version == __version__
    assert re.search(rf"^## {re.escape(version)}$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)


def test_the_license_and_the_description(found: dict[str, Any]) -> None:
    project = found["project"]
    assert project["license"] == {"file": "LICENSE"} and (ROOT / "LICENSE").read_text("utf-8").startswith("MIT License")
    assert 20 < len(project["description"]) < 200 and (ROOT / project["readme"]).exists()


def test_the_dependencies_are_those_that_the_manager_installs(found: dict[str, Any]) -> None:
    """The registry's list and requirements.txt; PyTorch is the host's and in neither."""
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    assert found["project"]["dependencies"] == [line for line in lines if line and not line.startswith("#")]
    assert not [line for line in lines if line.startswith("torch")]


def test_the_classifiers(found: dict[str, Any]) -> None:
    """One that isn't known makes the registry drop all of its kind."""
    classifiers = found["project"]["classifiers"]
    systems = [
        entry.removeprefix("Operating System :: ") for entry in classifiers if entry.startswith("Operating System :: ")
    ]
    accelerators = [
        entry.removeprefix("Environment :: ") for entry in classifiers if entry.startswith("Environment :: ")
    ]
    assert systems and all(system.startswith(SYSTEMS) for system in systems)
    assert accelerators == ["GPU :: NVIDIA CUDA"] and set(accelerators) <= ACCELERATORS


def test_the_versions_that_it_needs(found: dict[str, Any]) -> None:
    """Of Python: ruff's and mypy's too. Of ComfyUI: what the old nodes say."""
    assert found["project"]["requires-python"] == ">=3.10" and found["tool"]["mypy"]["python_version"] == "3.10"
    needs = found["tool"]["comfy"]["requires-comfyui"]
    assert all(VERSIONS.fullmatch(part.strip()) for part in needs.split(","))
    assert f'NEEDS = "{needs.removeprefix(">=")}"' in (ROOT / "nodes" / "__init__.py").read_text("utf-8")


def test_the_publisher_and_the_links(found: dict[str, Any]) -> None:
    """The publisher is an account's id.

    A link that leads nowhere is worse than none: each is whole, or left out until there is a place.
    """
    comfy, urls = found["tool"]["comfy"], found["project"].get("urls", {})
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", comfy["PublisherId"]) and comfy["DisplayName"] == "Fast Compile"
    assert set(urls) <= {"Homepage", "Documentation", "Repository", "Issues", "Bug Tracker"}
    links = [*urls.values(), *(comfy[name] for name in ("Icon", "Banner") if name in comfy)]
    assert all(re.fullmatch(r"https://[\w.-]+/\S+", link) for link in links), links


def test_what_is_published_is_in_the_repository(found: dict[str, Any]) -> None:
    """The registry takes what git tracks; ``includes`` would name the rest."""
    for needed in (
        "__init__.py",
        "install.py",
        "requirements.txt",
        "web",
        "locales",
        "example_workflows",
        "sfast_core",
        "nodes",
        "csrc",
    ):
        assert (ROOT / needed).exists()
    assert all((ROOT / entry).exists() for entry in found["tool"]["comfy"].get("includes", []))
