"""install.py as hosts run it, in a copy of its files, with a pip that finds nothing and an nvcc that is a script."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = Path("sfast_core") / "native" / "lib"
needs_scripts = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for nvcc is a script with a #! line")

# Does as FAKE_NVCC says, and writes what it was called for to calls.txt beside it.
FAKE_NVCC = """#!{python}
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(__file__).parent
arguments = sys.argv[1:]
with (folder / "calls.txt").open("a") as calls:
    calls.write(arguments[0] + "\\n")
if arguments == ["--version"] and os.environ.get("FAKE_NVCC") == "mute":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (folder / "child.txt").write_text(str(child.pid))
    time.sleep(600)
elif arguments == ["--version"]:
    print("Cuda compilation tools, release " + (folder / "version.txt").read_text())
elif arguments == ["--list-gpu-arch"]:
    print("compute_75\\ncompute_80\\ncompute_90")
else:
    output = pathlib.Path(arguments[arguments.index("-o") + 1])
    output.write_bytes(b"half")
    behaviour = os.environ.get("FAKE_NVCC")
    if behaviour == "fail":
        print("kernel.cu(3): error: expected a ';'")
        sys.exit(2)
    if behaviour == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (folder / "child.txt").write_text(str(child.pid))
        time.sleep(600)
    output.write_bytes(b"whole " + " ".join(arguments).encode())
"""


@dataclass(frozen=True)
class Pack:
    """A copy of what install.py needs, and an environment in which only the stand-ins can be found."""

    root: Path
    tools: Path

    @property
    def libraries(self) -> list[Path]:
        """The libraries that are in place."""
        return sorted((self.root / LIBRARIES).glob("sfast-*"))

    @property
    def leftovers(self) -> list[str]:
        """What else lies in the libraries' folder, but for the state."""
        return sorted(
            path.name
            for path in (self.root / LIBRARIES).glob("*")
            if path not in self.libraries and path.name != "state.json"
        )

    @property
    def calls(self) -> list[str]:
        """The first argument of each call to nvcc."""
        log = self.tools / "calls.txt"
        return log.read_text().splitlines() if log.exists() else []

    def environ(self, **more: str) -> dict[str, str]:
        """Variables for a subprocess: no CUDA but the stand-in, no package index."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if key not in ("CUDA_HOME", "CUDA_PATH", "INDEX_URL", "NVCC_CCBIN")
        }
        return {**kept, "PATH": str(self.tools), "PIP_NO_INDEX": "1", "SFAST_CUDA_ARCHS": "80", **more}

    def start(self, *options: str, **more: str) -> subprocess.Popen[str]:
        """``python install.py`` in the copy, from a folder that is not it.

        Options with two dashes are its own, others Python's.
        """
        own = [option for option in options if option.startswith("--")]
        command = [
            sys.executable,
            *(option for option in options if option not in own),
            str(self.root / "install.py"),
            *own,
        ]
        return subprocess.Popen(
            command, cwd=self.tools, env=self.environ(**more), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *options: str, **more: str) -> tuple[str, str]:
        """What it prints to the two streams; it must end with 0 and without a traceback."""
        process = self.start(*options, **more)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0 and "Traceback" not in out + err
        assert all(line.startswith("Fast Compile: ") for line in out.splitlines()), out
        return out, err


@pytest.fixture
def pack(tmp_path: Path) -> Pack:
    """A fresh copy without a library, and the stand-ins."""
    made = Pack(tmp_path / "a pack", tmp_path / "tools")
    shutil.copytree(
        ROOT / "fast_compile_installer",
        made.root / "fast_compile_installer",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copytree(ROOT / "csrc", made.root / "csrc")
    (made.root / LIBRARIES.parent).mkdir(parents=True)
    shutil.copy(ROOT / "sfast_core" / "native" / "build.py", made.root / LIBRARIES.parent)
    shutil.copy(ROOT / "install.py", made.root)
    (made.root / "requirements.txt").write_text("json\n")  # always there
    made.tools.mkdir()
    for name, text in (("nvcc", FAKE_NVCC.format(python=sys.executable)), ("gcc", "#!/bin/sh\n")):
        (made.tools / name).write_text(text)
        (made.tools / name).chmod(0o755)
    (made.tools / "version.txt").write_text("12.4")
    return made


# -- at a host's start ---------------------------------------------------------------------------------------------


@needs_scripts
def test_with_nothing_to_do_it_is_silent_and_starts_nothing(pack: Pack) -> None:
    out, _ = pack.run()
    assert "building the CUDA extension for sm_80 with nvcc 12.4" in out and len(pack.libraries) == 1
    calls = pack.calls
    assert calls[:2] == ["--version", "--list-gpu-arch"] and len(calls) == 3
    out, err = pack.run("-X", "importtime")
    assert out == "" and pack.calls == calls
    imported = {line.rpartition("|")[2].strip() for line in err.splitlines()}
    assert "json" in imported and not {"torch", "numpy", "pip", "sfast_core"} & imported


def test_without_nvcc_one_line_says_what_that_costs(pack: Pack) -> None:
    (pack.tools / "nvcc").unlink()
    out, _ = pack.run(PATH=str(pack.tools / "nothing"), CUDA_HOME="")
    if "building" in out:
        pytest.skip("there is an nvcc in CUDA's usual folder")
    assert len(out.splitlines()) == 1 and "no CUDA extension (" in out and "GroupNorm runs in Triton" in out


@needs_scripts
def test_without_a_gpu_nothing_is_built(pack: Pack) -> None:
    out, _ = pack.run(SFAST_CUDA_ARCHS="")
    assert out.splitlines() == [
        "Fast Compile: no CUDA extension (no NVIDIA GPU found): GroupNorm runs in Triton, or without Triton in PyTorch"
    ]
    assert pack.libraries == []


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip")
def test_a_failing_pip_costs_one_line(pack: Pack) -> None:
    (pack.root / "requirements.txt").write_text("json\nno-such-package-as-this\n")
    out, _ = pack.run()
    assert (
        "Fast Compile: installing no-such-package-as-this (once; it may take a minute) ..." in out and "json" not in out
    )
    assert (
        "no-such-package-as-this is missing (ERROR: No matching distribution found for no-such-package-as-this)" in out
    )


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="needs pip")
def test_a_download_that_failed_is_not_tried_again_at_every_start(pack: Pack) -> None:
    def tried(*options: str, **more: str) -> bool:
        out, _ = pack.run(*options, **more)
        assert (
            "no-such-package-as-this is missing (ERROR: No matching distribution found for no-such-package-as-this"
            in out
        )
        again = "installing no-such-package-as-this (once" in out
        assert ("tried before, and again a day later or by python install.py --retry" in out) is not again
        return again

    def age(seconds: float) -> None:
        kept = json.loads(memory.read_text())
        memory.write_text(json.dumps({**kept, "time": kept["time"] - seconds}))

    (pack.root / "requirements.txt").write_text("json\nno-such-package-as-this\n")
    memory = pack.root / "build" / "requirements.json"
    assert tried() and not tried() and not tried()
    assert tried("--retry"), "it is asked for"
    assert not tried()
    age(23 * 3600)
    assert not tried()
    age(2 * 3600)
    assert tried(), "a day is over"
    age(-3600)
    assert tried(), "the clock was wrong"
    memory.write_text("damaged")
    assert tried() and not tried()
    assert tried(INDEX_URL="http://127.0.0.1:9/simple"), "another index"
    (pack.root / "requirements.txt").write_text("json\n")
    assert "missing" not in pack.run()[0]


def test_a_broken_set_up_costs_one_line(pack: Pack) -> None:
    (pack.root / "requirements.txt").write_text("numpy>=2,<3\n")
    out, _ = pack.run()
    assert out.startswith("Fast Compile: set-up was left unfinished: ValueError") and len(out.splitlines()) == 1


def test_the_command_line(pack: Pack) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(pack.root / "install.py"), *arguments]
        return subprocess.run(command, env=pack.environ(), capture_output=True, text=True, check=False)

    for given, code, said in (("--help", 0, "demo"), ("dmeo", 2, "'dmeo' is not"), ("--retry x", 2, "'--retry x' is")):
        assert said in (answer := run(*given.split())).stdout and answer.returncode == code


# -- the build -----------------------------------------------------------------------------------------------------


@needs_scripts
def test_a_failed_build_leaves_nothing_and_is_not_repeated(pack: Pack) -> None:
    out, _ = pack.run(FAKE_NVCC="fail")
    assert "nvcc ended with 2: kernel.cu(3): error: expected a ';'" in out
    assert pack.libraries == [] and pack.leftovers == []
    calls = pack.calls
    out, _ = pack.run(FAKE_NVCC="ok")
    assert "error: expected a ';' (tried before" in out and pack.calls == calls
    out, _ = pack.run("--retry", FAKE_NVCC="fail")
    assert "building the CUDA extension" in out and len(pack.calls) > len(calls)
    source = pack.root / "csrc" / "status.cu"
    source.write_text(source.read_text() + "\n")
    pack.run(FAKE_NVCC="ok")
    assert len(pack.libraries) == 1, "changed sources are tried again"


@needs_scripts
def test_a_slow_build_is_stopped_with_all_that_it_started(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = load_builder(pack)
    for key, value in pack.environ(FAKE_NVCC="hang").items():
        monkeypatch.setenv(key, value)
    outcome = builder.ensure(lambda line: None, limit_s=2.0)
    assert outcome.library is None and "stopped after 2 s" in outcome.reason
    assert pack.libraries == [] and pack.leftovers == []
    child = int((pack.tools / "child.txt").read_text())
    wait_for(lambda: not is_running(child))


@needs_scripts
@pytest.mark.parametrize("tool", ["nvcc", "nvidia-smi"])
def test_a_tool_that_gives_no_answer_has_a_few_seconds_and_a_day_of_rest(
    pack: Pack, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    builder = load_builder(pack)
    # the tool is a script of Python's, which a busy machine starts slowly
    monkeypatch.setattr(builder, "PROBE_LIMIT_S", 2.0)
    if tool == "nvidia-smi":
        monkeypatch.setenv("SFAST_CUDA_ARCHS", "")
        (pack.tools / tool).write_text(FAKE_NVCC.format(python=sys.executable).replace('["--version"]', "sys.argv[1:]"))
        (pack.tools / tool).chmod(0o755)
    environ = pack.environ(FAKE_NVCC="mute", SFAST_CUDA_ARCHS="80" if tool == "nvcc" else "")
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    if tool == "nvidia-smi":
        (pack.tools / "nvcc").write_text("#!/bin/sh\necho release 12.4\n")

    def tried(again: bool = False) -> bool:
        (pack.tools / "child.txt").unlink(missing_ok=True)
        outcome = builder.ensure(lambda line: None, environ=environ, again=again)
        assert outcome.library is None and f"{tool} --" in outcome.reason and "gave no answer in 2 s" in outcome.reason
        started = (pack.tools / "child.txt").exists()
        if started:
            child = int((pack.tools / "child.txt").read_text())
            wait_for(lambda: not is_running(child))
        assert ("tried before" in outcome.reason) is not started
        return started

    assert tried() and not tried() and tried(again=True) and not tried()
    state = pack.root / LIBRARIES / "state.json"
    kept = json.loads(state.read_text())
    state.write_text(json.dumps({**kept, "until": kept["until"] - 25 * 3600}))
    assert tried() and not tried()
    assert load_builder(pack).PROBE_LIMIT_S == 5.0


@needs_scripts
def test_a_build_that_is_killed_from_outside_leaves_no_library(pack: Pack) -> None:
    process = pack.start(FAKE_NVCC="hang")
    try:
        wait_for((pack.tools / "child.txt").exists)
        process.kill()
        process.communicate(timeout=60)
        assert pack.libraries == []
        (stale,) = (pack.root / LIBRARIES).glob(".build-*")
    finally:
        end_orphans(pack)
    os.utime(stale, (time.time() - 7200,) * 2)
    pack.run()
    assert len(pack.libraries) == 1 and pack.leftovers == []


@needs_scripts
def test_what_goes_into_a_build_decides_on_the_next(pack: Pack) -> None:
    def build(**more: str) -> tuple[str, bool]:
        before = len(pack.calls)
        pack.run(**more)
        (library,) = pack.libraries  # the one before it is gone
        return library.name, "-O3" in pack.calls[before:]

    first, built = build()
    assert built and build() == (first, False)
    (pack.root / LIBRARIES / "state.json").write_text("damaged")
    assert build() == (first, False), "the library's own name says what it was built from"
    other_arch, built = build(SFAST_CUDA_ARCHS="9.0;8.0")
    assert built and other_arch != first and other_arch.split("-")[1] == first.split("-")[1]
    flags = pack.libraries[0].read_bytes()
    assert b"code=sm_80" in flags and b"code=sm_90 " in flags and b"code=compute_75" in flags
    source = pack.root / "csrc" / "pack.cuh"
    source.write_text(source.read_text() + "\n")
    other_source, built = build(SFAST_CUDA_ARCHS="9.0;8.0")
    assert built and other_source.split("-")[1] != first.split("-")[1]
    (pack.tools / "version.txt").write_text("13.0")
    os.utime(pack.tools / "nvcc", ns=(1, 1))  # another nvcc is another file
    other_nvcc, built = build(SFAST_CUDA_ARCHS="9.0;8.0")
    assert built and other_nvcc != other_source
    pack.libraries[0].unlink()
    assert build(SFAST_CUDA_ARCHS="9.0;8.0") == (other_nvcc, True)


@needs_scripts
def test_the_gpus_decide_on_the_architectures(pack: Pack) -> None:
    builder = load_builder(pack)

    def archs(listed: str, cuda_major: int = 12) -> tuple[str, ...]:
        smi = pack.tools / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\nprintf '{listed}'\n")
        smi.chmod(0o755)
        found: tuple[str, ...] = builder.gpu_archs(pack.environ(), cuda_major)
        return found

    assert (
        archs("8.6\\n8.6\\n9.0\\n") == ("86", "90a") and archs("9.0\\n", 11) == ("90",) and archs("12.0\\n") == ("120",)
    )
    assert archs("6.1\\n8.9\\n") == ("89",)
    with pytest.raises(builder.BuildError, match=r"below 7\.5"):
        archs("6.1\\n")
    with pytest.raises(builder.BuildError, match="no NVIDIA GPU"):
        archs("No devices were found\\n")


# -- what the tests use --------------------------------------------------------------------------------------------


def load_builder(pack: Pack):  # type: ignore[no-untyped-def]
    """The copy's build.py."""
    spec = importlib.util.spec_from_file_location("build_of_the_copy", pack.root / LIBRARIES.parent / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


def wait_for(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Until it holds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether a process lives (one that nobody has asked for its result yet doesn't)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def end_orphans(pack: Pack) -> None:
    """What a killed install.py left running: the stand-in and its child, one group."""
    child = int((pack.tools / "child.txt").read_text())
    os.killpg(os.getpgid(child), signal.SIGKILL)
    wait_for(lambda: not is_running(child))
