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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the setuptools that is here: nothing is downloaded, and this folder stays as it is."""
    try:  # not imported: it puts its distutils in the place of Python's, which others may have imported
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("needs setuptools")
    if int(version.split(".")[0]) < 71 and importlib.util.find_spec("wheel") is None:  # 71 has wheel inside
        pytest.skip("needs setuptools 71, or wheel")
    folder = tmp_path_factory.mktemp("package")
    sources = folder / "sources"
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
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        folder,
        sources,
    ]
    done = subprocess.run([*map(str, pip)], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    return found


def test_the_wheel_has_the_core_and_nothing_beside_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    metadata = [name for name in names if ".dist-info/" in name]
    assert {name.split("/")[0] for name in names if name not in metadata} == {"sfast_core"}
    modules = {str(path.relative_to(ROOT).as_posix()) for path in (ROOT / "sfast_core").rglob("*.py")}
    sources = {f"sfast_core/csrc/{path.name}" for path in CSRC.iterdir() if path.suffix in (".cu", ".cuh", ".h")}
    assert set(names) - set(metadata) == modules | sources | {"sfast_core/py.typed"}


def test_it_works_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    """The libraries that it asks for are those of this environment."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    (packages,) = map(
        Path, run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], tmp_path).splitlines()
    )
    zipfile.ZipFile(wheel).extractall(packages)
    libraries = [path for path in site.getsitepackages() if Path(path).is_dir()]
    (packages / "libraries.pth").write_text("\n".join(libraries))
    calls, module, sources = run([python, "-c", USED], tmp_path).splitlines()
    assert calls.startswith("{'traced': 1, 'fused': 2} ") and calls.endswith(" True")
    assert Path(module).parent == packages / "sfast_core" and Path(sources) == packages / "sfast_core" / "csrc"
    assert "PyTorch" in run([python, "-m", "sfast_core", "doctor"], tmp_path, codes=(0, 1))
    assert "CUDA extension" in run([python, "-m", "sfast_core", "build", "--help"], tmp_path)
