"""Which packages install.py asks for, what it asks of pip, and what it shows of pip's answers."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from fast_compile_installer import optional, packages, requirements, torch_choice
from fast_compile_installer import pip as pip_module

ROOT = Path(__file__).resolve().parent.parent


# -- requirements --------------------------------------------------------------------------------------------------


def test_requirements_hold_nothing_that_brings_torch_or_cuda() -> None:
    names = requirements.read(ROOT / "requirements.txt")
    assert {"numpy", "platformdirs", "safetensors"} <= set(names) <= {"numpy", "platformdirs", "safetensors", "triton"}
    assert ("triton" in names) == (sys.platform == "linux")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = next(line for line in text.splitlines() if line.startswith("dependencies = "))
    wanted = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line]
    assert json.loads(listed.partition("=")[2]) == wanted


def test_missing_asks_for_the_triton_that_torch_names(monkeypatch: pytest.MonkeyPatch) -> None:
    named = ["filelock", 'triton==3.6.0; platform_system == "Linux"', "tritonclient==1.0"]
    monkeypatch.setattr(requirements, "_requires", lambda name: named if name == "torch" else [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "numpy" else None)
    assert requirements.missing(["numpy", "triton", "platformdirs"]) == ["triton==3.6.0", "platformdirs"]


def test_the_private_environment_never_asks_for_a_package_that_needs_torch_with_its_dependencies() -> None:
    test = packages.packages_for("test")
    assert not {"accelerate", "peft", "torch", "torchvision", "triton"} & {
        name.partition(">")[0] for name in test.plain
    }
    assert {"accelerate>=0.30", "peft>=0.11"} <= set(test.bare)


@pytest.mark.parametrize(
    ("torch_version", "there", "reason"),
    [
        ("2.3.1", ["cudnn", "driver"], "PyTorch before 2.4 comes with cuDNN 8"),
        ("2.11.0+cu130", ["driver"], "no cuDNN 9 comes with this PyTorch"),
        ("2.11.0+cu130", ["cudnn"], "no NVIDIA driver"),
        ("2.11.0+cu130", ["cudnn", "driver", "frontend"], "it is there"),
        ("2.11.0+cu130", ["cudnn", "driver"], None),
    ],
)
def test_cudnn_frontend_goes_in_only_where_it_runs(
    torch_version: str, there: list[str], reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optional, "_has_cudnn", lambda: "cudnn" in there)
    monkeypatch.setattr(optional, "_has_gpu_driver", lambda: "driver" in there)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if "frontend" in there else None)
    assert optional.why_not(torch_version) == reason


def test_a_cudnn_frontend_that_cannot_be_had_is_left_alone_for_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(optional, "_MEMORY", tmp_path / "build" / "memory.json")
    monkeypatch.setattr(optional, "why_not", lambda torch_version: None)
    monkeypatch.setattr(requirements, "version", lambda name: "2.11.0")
    key = optional.wanted()
    assert key is not None and "PyTorch 2.11.0" in key
    failing = pip_module.Pip((sys.executable, "-c", "import sys; print('ERROR: no wheel'); sys.exit(1)"))
    optional.install(failing, key)
    assert "can't be installed (ERROR: no wheel)" in capsys.readouterr().out
    assert optional.wanted() is None and optional.wanted(again=True) == key
    monkeypatch.setattr(requirements, "version", lambda name: "2.12.0")
    assert optional.wanted() is not None, "another PyTorch, another try"


# -- pip's output --------------------------------------------------------------------------------------------------


def test_pip_is_shown_in_brief(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        "Collecting numpy",
        "  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl (16.6 MB)",
        "  Downloading https://example.invalid/packages/ruff-0.17.6-py3-none-any.whl (11.2 MB)",
        "  Downloading six-1.17.0-py2.py3-none-any.whl (11 kB)",
        "Installing collected packages: numpy, ruff, six",
    ]
    shown = [pip_module.condense(line) for line in lines]
    assert shown == [None, "  numpy 2.4.6 (17 MB)", "  ruff 0.17.6 (11 MB)", None, "  unpacking 3 packages"]
    code = (
        "import sys; print('''" + "\\n".join(lines) + "'''); print('ERROR: it broke'); print('see above'); sys.exit(1)"
    )
    with pytest.raises(pip_module.PipError, match="^ERROR: it broke$"):
        pip_module.Pip((sys.executable, "-c", code)).install([], show=True)
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_pip_or_uv_works_on_the_running_python(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"pip"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in there else None)
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/uv" if name in there else None)
    monkeypatch.setattr(sys, "executable", "C:/portable/python_embeded/python.exe")
    assert pip_module.for_running_python() == pip_module.Pip((sys.executable, "-s", "-m", "pip", "install"))
    there = {"uv"}
    found = pip_module.for_running_python()
    assert found == pip_module.Pip(("/bin/uv", "pip", "install", "--python", sys.executable), is_uv=True)
    there = set()
    assert pip_module.for_running_python() is None


def test_a_pip_that_hangs_is_stopped() -> None:
    with pytest.raises(pip_module.PipError, match="stopped after 1 s"):
        pip_module.Pip((sys.executable, "-c", "import time; time.sleep(600)")).install([], show=False, limit_s=1.0)


@pytest.mark.parametrize(
    ("version", "needs", "word"),
    [
        ("2.13.0", ["filelock", 'nvidia-cudnn-cu13==9.1; platform_system == "Linux"'], "gigabytes"),
        ("2.13.0+cu130", [], "gigabytes"),
        ("2.13.0+cpu", ["filelock"], "CPU only"),
        ("2.13.0", ["filelock"], "CPU only"),
    ],
)
def test_the_build_of_torch_is_told_beforehand(version: str, needs: list[str], word: str) -> None:
    report = {"install": [{"metadata": {"name": "torch", "version": version, "requires_dist": needs}}]}
    told = torch_choice.describe(report)
    assert word in told and told != torch_choice.describe(None)
    assert "gigabytes" in torch_choice.describe(None) and "CPU only" in torch_choice.describe(None)
