"""``pip install`` of this folder: the core as a package, from a wheel in an environment that has nothing else of
ours.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import site
import subprocess
import sys
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"

#: As README has it for diffusers' pipelines and for any module, on a CPU, and what a user looks at.
USED = """
import torch
import sfast_core
from sfast_core import CompileConfig, compile, compile_pipeline
from sfast_core.native import build
from sfast_core.native.interface import interface

net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.SiLU(), torch.nn.Linear(8, 8)).requires_grad_(False)
x = torch.randn(2, 8)
expected = net(x)
fast = compile(net, CompileConfig(allow_cpu=True))
with torch.inference_mode():
    for _ in range(3):
        torch.testing.assert_close(fast(x), expected)
print(dict(fast.engine.report.calls), sfast_core.__version__, len(interface().functions) > 10)
print(sfast_core.__file__, build.CSRC, sep="\\n")
"""


def run(command: Sequence[str | Path], folder: Path, codes: Sequence[int] = (0,)) -> str:
    """What a command prints that ends with one of these codes, run where nothing of ours lies."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=600, env=environ)
    assert done.returncode in codes, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what belongs to the pack, for the setuptools that is here: nothing is downloaded, and this folder stays
    as it is.
    """
    try:  # not imported: it puts its distutils in the place of Python's, which others may have imported
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs setuptools")
    if int(version.split(".")[0]) < 71 and importlib.util.find_spec("wheel") is None:  # 71 has wheel inside
        pytest.skip("needs setuptools 71, or wheel")
    sources = tmp_path_factory.mktemp("package") / "sources"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if tracked.returncode:
        pytest.skip("needs git, which tells what belongs to the pack")
    for name in filter(None, tracked.stdout.split("\0")):
        if (ROOT / name).is_file():
            (sources / name).parent.mkdir(parents=True, exist_ok=True)
            (sources / name).write_bytes((ROOT / name).read_bytes())
    return sources


def pip(sources: Path, command: Sequence[str | Path], python: Path | None = None) -> None:
    """Run a command of pip, for another Python where one is given."""
    other = [] if python is None else ["--python", python]
    alone = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    line = [sys.executable, "-m", "pip", *other, command[0], *alone, *command[1:]]
    done = subprocess.run([*map(str, line)], cwd=sources.parent, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(sources: Path) -> Path:
    pip(sources, ["wheel", "-w", sources.parent, sources])
    (found,) = sources.parent.glob("*.whl")
    return found


def environment(folder: Path) -> tuple[Path, Path]:
    """A new environment with the libraries of this one: its Python, and the folder of its packages."""
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    (packages,) = map(
        Path, run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], folder).splitlines()
    )
    libraries = [path for path in site.getsitepackages() if Path(path).is_dir()]
    (packages / "libraries.pth").write_text("\n".join(libraries))
    return python, packages


def test_the_wheel_has_the_core_and_nothing_beside_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    metadata = [name for name in names if ".dist-info/" in name]
    assert {name.split("/")[0] for name in names if name not in metadata} == {"sfast_core"}
    modules = {str(path.relative_to(ROOT).as_posix()) for path in (ROOT / "sfast_core").rglob("*.py")}
    sources = {f"sfast_core/csrc/{path.name}" for path in CSRC.iterdir() if path.suffix in (".cu", ".cuh", ".h")}
    assert set(names) - set(metadata) == modules | sources | {"sfast_core/py.typed"}


def test_it_works_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    """The libraries that it asks for are those of this environment."""
    python, packages = environment(tmp_path)
    zipfile.ZipFile(wheel).extractall(packages)
    calls, module, sources = run([python, "-c", USED], tmp_path).splitlines()
    assert calls.startswith("{'traced': 1, 'fused': 2} ") and calls.endswith(" True")
    assert Path(module).parent == packages / "sfast_core" and Path(sources) == packages / "sfast_core" / "csrc"
    assert "PyTorch" in run([python, "-m", "sfast_core", "doctor"], tmp_path, codes=(0, 1))
    assert "CUDA extension" in run([python, "-m", "sfast_core", "build", "--help"], tmp_path)


def test_it_works_where_it_is_installed_for_who_changes_it(sources: Path, tmp_path: Path) -> None:
    """``pip install -e``: what runs are the sources themselves."""
    if int(importlib.metadata.version("pip").split(".")[0]) < 23:
        pytest.skip("needs a pip that installs for another Python: 22.3")
    python, _ = environment(tmp_path)
    pip(sources, ["install", "-e", sources], python)
    calls, module, csrc = run([python, "-c", USED], tmp_path).splitlines()
    assert calls.startswith("{'traced': 1, 'fused': 2} ") and calls.endswith(" True")
    assert Path(module).parent == sources / "sfast_core" and Path(csrc) == sources / "csrc"
