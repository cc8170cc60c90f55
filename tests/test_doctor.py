"""``python -m sfast_core doctor``: what it finds, and what its exit code says."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sfast_core.__main__ import main
from sfast_core.doctor import examine, installed
from sfast_core.doctor.cache import clear_cache, examine_cache
from sfast_core.doctor.examples import examples
from sfast_core.doctor.findings import Finding
from sfast_core.doctor.installed import examine_installed
from sfast_core.doctor.ops import examine_ops
from sfast_core.machine.numerics import Numerics
from sfast_core.ops import all_ops
from sfast_core.target import Target

ROOT = Path(__file__).resolve().parent.parent
CPU = Target(torch.device("cpu"))
GPU: Any = SimpleNamespace(is_cuda=True, device=torch.device("cpu"), name="a GPU", capability=(9, 0))


def _named(findings: Any, name: str) -> Finding:
    found = [finding for finding in findings if finding.name == name]
    assert len(found) == 1, found
    return found[0]


# -- kernels -------------------------------------------------------------------------------------------------------


def test_every_op_has_a_typical_call() -> None:
    """Whose arguments are right: the references compute them, and the example names every op."""
    ops, seen = all_ops(), set()
    for name, args in examples(torch.device("meta")):
        ops[name].reference(*args)
        seen.add(name)
    assert seen == set(ops)


def test_a_typical_call_is_what_most_impls_are_for() -> None:
    """On an H100, going by shapes: reasons are about libraries, and about shapes where the example of another call
    fits.
    """
    h100 = Target(
        torch.device("cuda", 0), "NVIDIA H100", (9, 0), 132, 227 * 1024, True, Numerics(fp16_accumulation=True)
    )
    fits = set()
    for name, args in examples(torch.device("meta")):
        for impl in all_ops()[name].impls:
            reason = impl.why_not(h100, *args)
            if reason is None or any(
                word in reason
                for word in ("triton", "cudnn", "xformers", "extension", "CUDA", "cuDNN", "installed", "built")
            ):
                fits.add(f"{name}.{impl.name}")
    assert fits == {f"{op.name}.{impl.name}" for op in all_ops().values() for impl in op.impls}


class _Impl:
    """An impl of ``double`` below."""

    def __init__(self, name: str, launch: Any, reason: str | None = None, rank: int = 0) -> None:
        self.name, self.launch, self.reason, self.rank = name, launch, reason, rank

    def why_not(self, target: Any, *args: Any) -> str | None:
        assert all(arg.device.type == "meta" for arg in args)
        return self.reason and f"{self.name}: {self.reason}"


def _double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def _broken(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no kernel image\nmore")


def _examined(*impls: _Impl, optional: bool = False) -> list[Finding]:
    ops: Any = {"double": SimpleNamespace(name="double", reference=_double, impls=impls, optional=optional)}
    return list(examine_ops(GPU, ops, [("double", (torch.ones(4),))]))


def test_an_op_that_works() -> None:
    (found,) = _examined(_Impl("a", _double), _Impl("b", _broken, "needs b"), _Impl("c", _broken, rank=1))
    assert found.state == "ok" and found.text.startswith(
        "works: a. Not here: b: needs b; c: fails: RuntimeError: no kernel image"
    )


@pytest.mark.parametrize(
    ("launch", "words"), [(_broken, "fails: RuntimeError: no kernel image"), (lambda x: 2.1 * x, "gives wrong results")]
)
def test_an_impl_that_does_not_work(launch: Any, words: str) -> None:
    """It is named, and how to leave it out; that another one works doesn't make it good."""
    op, broken = _examined(_Impl("a", _double), _Impl("b", launch))
    assert op.state == "ok" and broken.state == "problem" and broken.name == "double.b" and words in broken.text
    assert 'disabled_impls=("double.b",)' in str(broken.mend)


def test_an_op_without_a_kernel() -> None:
    (found,) = _examined(_Impl("a", _double, "needs a"))
    assert found.state == "problem" and "a: needs a" in found.text


def test_an_op_that_nothing_needs() -> None:
    """A GPU that isn't a Hopper one has no kernel for some: there is nothing to mend."""
    (found,) = _examined(_Impl("a", _double, "is for compute capability 9.0, this is 8.6"), optional=True)
    assert found.state == "note" and "a: is for compute capability 9.0" in found.text and found.mend is None
    broken = _examined(_Impl("a", _broken), optional=True)
    assert [finding.state for finding in broken] == ["note", "problem"]


def test_without_a_gpu_no_kernel_is_tried() -> None:
    (found,) = examine_ops(CPU, all_ops(), ())
    assert found.state == "note" and "need a GPU" in found.text


@pytest.mark.gpu
def test_on_a_gpu_every_op_works() -> None:
    """Real kernels, compared with the references."""
    ops = set(all_ops())
    found = [finding for finding in examine() if finding.name.split(".")[0] in ops]
    assert {finding.name for finding in found if finding.state == "ok"} == ops, found


# -- libraries -----------------------------------------------------------------------------------------------------


def test_what_is_installed() -> None:
    found = list(examine_installed(CPU))
    assert torch.__version__ in _named(found, "torch").text
    assert _named(found, "GPU").state == "problem" and _named(found, "GPU").mend


@pytest.mark.parametrize(("capability", "state"), [((9, 0), "ok"), ((7, 5), "problem")])
def test_a_gpu(capability: tuple[int, int], state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed.load, "why_not", lambda device: "it isn't built")
    found = list(examine_installed(SimpleNamespace(**{**vars(GPU), "capability": capability})))  # type: ignore[arg-type]
    assert _named(found, "GPU").state == state and "a GPU" in _named(found, "GPU").text
    assert _named(found, "CUDA extension").state == "note"


@pytest.mark.parametrize(
    ("error", "state", "words"),
    [
        (ModuleNotFoundError("no triton", name="triton"), "problem", "not installed"),
        (ModuleNotFoundError("no other", name="other"), "problem", "can't be imported: no other"),
        (OSError("undefined symbol"), "problem", "can't be imported: OSError: undefined symbol"),
        (None, "ok", ""),
    ],
)
def test_a_library(error: Exception | None, state: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, broken, and there."""

    def load(name: str) -> None:
        if name == "triton" and error is not None:
            raise error

    monkeypatch.setattr(installed.importlib, "import_module", load)
    monkeypatch.setattr(installed.load, "why_not", lambda device: "it isn't built")
    found = _named(examine_installed(GPU), "triton")
    assert found.state == state and words in found.text and bool(found.mend) == (state != "ok")
    without_gpu = _named(examine_installed(CPU), "triton")
    if state == "problem" and "not installed" in words:
        assert without_gpu.state == "note" and not without_gpu.mend, "installing it would make nothing faster"
    else:
        assert without_gpu.state == state


def test_an_old_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu121")
    assert _named(examine_installed(CPU), "torch").state == "problem"
    monkeypatch.setattr(torch, "__version__", "2.15.0a0+git1")
    assert _named(examine_installed(CPU), "torch").state == "ok"


# -- the cache -----------------------------------------------------------------------------------------------------


def test_the_cache(tmp_path: Path) -> None:
    from sfast_core.machine.choices import Choice, Choices

    assert "0 files" in _named(list(examine_cache(CPU, tmp_path))[:1], "cache").text
    Choices.of(CPU, tmp_path).add([Choice("a", "b", 1, "c", 1e-6)])
    (tmp_path / "choices-other.json").write_text("{")
    (tmp_path / "mine.txt").write_text("not ours")
    found = list(examine_cache(CPU, tmp_path))
    assert "2 files" in found[0].text and found[1].text == "1 choices" and "choices-other.json" in found[2].text
    assert clear_cache(tmp_path)[0] == 2 and (tmp_path / "mine.txt").exists()
    assert "empty" in list(examine_cache(CPU, tmp_path))[1].text
    assert clear_cache(tmp_path / "not there") == (0, 0)


# -- the command line ----------------------------------------------------------------------------------------------


def _run(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sfast_core", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, **more
    )


def test_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sfast_core.doctor

    monkeypatch.setattr(
        sfast_core.doctor, "examine", lambda: iter([Finding("ok", "a", "b"), Finding("note", "c", "d", "e")])
    )
    assert main(["doctor"]) == 0 and "The fastest way is open" in capsys.readouterr().out
    monkeypatch.setattr(sfast_core.doctor, "examine", lambda: iter([Finding("problem", "a", "b", "mend it so")]))
    assert main(["doctor"]) == 1 and "-> mend it so" in capsys.readouterr().out


def test_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import sfast_core.doctor

    monkeypatch.setattr(
        sfast_core.doctor, "examine", lambda: iter([Finding("ok", "a", "b"), Finding("problem", "c", "d", "e")])
    )
    assert main(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "findings": [
            {"state": "ok", "name": "a", "text": "b", "mend": None},
            {"state": "problem", "name": "c", "text": "d", "mend": "e"},
        ],
        "problems": 1,
    }


@pytest.mark.parametrize(
    ("torch_is", "words"),
    [
        ("raise ModuleNotFoundError('no torch', name='torch')", "has no PyTorch"),
        ("raise OSError('libcudart.so: no such file')", "PyTorch can't be loaded: libcudart.so"),
    ],
)
def test_without_pytorch(torch_is: str, words: str, tmp_path: Path) -> None:
    """One problem with its remedy, and no traceback; help needs nothing."""
    (tmp_path / "torch.py").write_text(torch_is)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = _run("doctor", "--clear-cache", env=environment)
    assert (
        done.returncode == 1
        and words in done.stdout
        and "-> run this with the host's own Python" in done.stdout
        and not done.stderr
    )
    assert _run("doctor", "--help", env=environment).returncode == 0
    no_command = _run(env=environment)
    assert no_command.returncode == 2 and "doctor" in no_command.stdout and not no_command.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_and_without_triton(tmp_path: Path) -> None:
    """It says so, in plain text on a pipe, and its cache is what --clear-cache empties."""
    (tmp_path / "blocked").mkdir()
    for name in ("triton", "rich", "cudnn"):
        (tmp_path / "blocked" / f"{name}.py").write_text(f"raise ModuleNotFoundError('blocked', name={name!r})")
    (tmp_path / "cache" / "fast_compile").mkdir(parents=True)
    (tmp_path / "cache" / "fast_compile" / "choices-1.json").write_text("{}")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "blocked"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = _run("doctor", "--clear-cache", env=environment)
    assert done.returncode == 1, done.stderr
    assert "triton: not installed" in done.stdout and "\x1b" not in done.stdout and not done.stderr
    if sys.platform == "linux" and importlib.util.find_spec("platformdirs"):
        assert "cache cleared: 1 files" in done.stdout


def test_a_saved_report(tmp_path: Path) -> None:
    from sfast_core.reporting.report import ModuleReport, Report
    from sfast_core.reporting.signature_report import SignatureReport

    module = ModuleReport("SDXL", "cuda:0")
    module.calls["eager"] += 2
    module.reasons["FreeU"] += 2
    module.signatures.append(
        SignatureReport("float16[2]", passes={"fuse_x": 1, "fuse_y": 0}, refused={"op": {"i": "i: needs CUDA"}})
    )
    report = Report([module], {"torch": "2"})
    data = {**report.as_dict(), "new": 1}
    data["modules"][0]["from a later version"] = {}
    file = tmp_path / "report.json"
    file.write_text(json.dumps(data))
    done = _run("report", str(file))
    assert (
        done.returncode == 0
        and done.stdout.rstrip() == report.text().rstrip()
        and "ran as before, 2x: FreeU" in done.stdout
    )
    assert _run("report", "-", input=json.dumps(data)).stdout == done.stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"\xff\xfe\x00", "no text file"),
        (b"{", "no JSON"),
        (b"[]", "the report: got a list"),
        (b"{}", "there is no 'modules'"),
        (b'{"modules": [1], "versions": {}}', "modules[0]: got a int"),
        (b'{"modules": [{"name": "x", "calls": 5}], "versions": {}}', "modules[0].calls: got a int, needs a dict"),
        (
            b'{"modules": [{"name": "x", "signatures": [{}]}], "versions": {}}',
            "modules[0].signatures[0]: there is no 'inputs'",
        ),
        (
            b'{"modules": [{"name": "x", "signatures": [{"inputs": "", "impls": {"a": 1}}]}], "versions": {}}',
            "signatures[0].impls.a: got a int",
        ),
        (b'{"modules": [{"name": "x", "calls": {"a": 1, "b": "2"}}], "versions": {}}', "not a report"),
    ],
)
def test_a_bad_file(content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named, with what is wrong in it; no traceback."""
    file = tmp_path / "report.json"
    if content is not None:
        file.write_bytes(content)
    assert main(["report", str(file)]) == 2
    said = capsys.readouterr()
    assert words in said.err and str(file) in said.err and not said.out


def test_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from sfast_core.reporting.terminal import printer

    pytest.importorskip("rich")
    printer()("plain [bold]text[/bold]", "bold red")
    assert capsys.readouterr().out == "plain [bold]text[/bold]\n"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    printer()("red [bold]text[/bold]", "bold red")
    said = capsys.readouterr().out
    assert "\x1b[" in said and "[bold]text[/bold]" in said


@pytest.mark.parametrize(
    "asked", ["from sfast_core import CompileConfig", "from sfast_core import *; compile_pipeline(1)"]
)
def test_python_is_told_that_there_is_no_torch(asked: str) -> None:
    command = [sys.executable, "-c", f"import sys; sys.modules['torch'] = None; {asked}"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stderr
    assert told.splitlines()[-1].startswith("ImportError: sfast_core needs PyTorch 2.6 or newer; pytorch.org")
    assert "ModuleNotFoundError" not in told
