"""Builds ``csrc/`` with nvcc into ``lib/``, in place.

Standard library only, no relative import: ``install.py`` loads this file by itself.

The library's name holds a hash of the sources (``load.py`` takes only a library whose hash is that of the sources
beside it) and one of all that went into it (nvcc's version, the architectures). It is compiled in a temporary folder
and moved into place when it is whole, so that no process ever sees half of it. ``lib/state.json`` remembers how the
last build ended and for what: while nothing has changed, :func:`ensure` starts no process, and a build that failed
isn't tried again at every start of a host.

    SFAST_CUDA_ARCHS   architectures to build for, such as "80;86;90a", in the place of those that nvidia-smi lists
    CUDA_HOME          (or CUDA_PATH) where bin/nvcc is, before PATH
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
_INSIDE = NATIVE.parent / "csrc"  # where the core is installed as a package
CSRC = _INSIDE if _INSIDE.is_dir() else NATIVE.parent.parent / "csrc"
LIBRARIES = NATIVE / "lib"
SUFFIX = ".dll" if sys.platform == "win32" else ".so"
LIMIT_S = 180.0  #: a host that starts waits for the build: never longer than this
OLDEST_ARCH = 75  #: its PTX goes in too, so that a GPU which wasn't there at build time runs the kernels as well
PROBE_LIMIT_S = 5.0  #: a tool that is asked for its version, or for the GPUs, answers in less than one
_STALE_S = 3600.0
_END_S = 2.0
_PROBE_AGAIN_S = 24 * 3600.0


class BuildError(Exception):
    """The build did not end in a library; the message says why in one line."""


class Hangs(BuildError):
    """A tool gave no answer."""


@dataclass(frozen=True)
class Outcome:
    """How :func:`ensure` ended: a library, or the reason why there is none."""

    library: Path | None
    reason: str | None = None
    built: bool = False


@dataclass(frozen=True)
class Recipe:
    """All that decides what comes out of nvcc."""

    nvcc: Path
    version: str
    archs: tuple[str, ...]
    ptx: str

    @property
    def file_name(self) -> str:
        """The library's name: ``sfast-<sources>-<everything>.so``."""
        source = source_hash()
        return f"sfast-{source}-{_digest([source, self.version, *self.archs, self.ptx])}{SUFFIX}"

    def command(self, output: Path) -> list[str]:
        """nvcc's command line."""
        targets = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in self.archs]
        targets.append(f"-gencode=arch=compute_{self.ptx},code=compute_{self.ptx}")
        host = [] if sys.platform == "win32" else ["-Xcompiler", "-fPIC,-fvisibility=hidden"]
        compiler = _visual_c()
        if compiler is not None:
            host += ["-ccbin", str(compiler)]
        sources = sorted(str(path) for path in CSRC.glob("*.cu"))
        return [
            str(self.nvcc),
            "-O3",
            "-std=c++17",
            "-shared",
            "--threads=4",
            *host,
            *targets,
            "-o",
            str(output),
            *sources,
        ]


def source_hash() -> str:
    """A hash of the sources and of this file, which holds the compiler's options."""
    files = [*(path for kind in ("*.cu", "*.cuh", "*.h") for path in sorted(CSRC.glob(kind))), Path(__file__)]
    return _digest([f"{path.name}\n{path.read_bytes().hex()}" for path in files])


def ensure(
    say: Callable[[str], None],
    *,
    environ: Mapping[str, str] = os.environ,
    limit_s: float = LIMIT_S,
    again: bool = False,
) -> Outcome:
    """The library for these sources and this machine, built where it is missing and can be.

    ``say`` is called with one line before a build starts. ``again``: a build that failed before, too. Raises nothing
    that a missing or broken tool can cause.
    """
    nvcc = find_nvcc(environ)
    if nvcc is None:
        return Outcome(None, "nvcc not found")
    key = _quick_key(nvcc, environ)
    state = _read_state()
    if state.get("key") == key:
        library = LIBRARIES / str(state.get("library"))
        if state.get("error") and not again and not _is_over(state.get("until")):
            return Outcome(
                None,
                f"{state['error']} (tried before; python install.py --retry, or python -m sfast_core build, tries"
                " again)",
            )
        if library.is_file():
            return Outcome(library)
    try:
        recipe = make_recipe(nvcc, environ)
    except Hangs as error:
        _write_state({"key": key, "error": str(error), "until": time.time() + _PROBE_AGAIN_S})
        return Outcome(None, str(error))
    except BuildError as error:
        return Outcome(None, str(error))
    library = LIBRARIES / recipe.file_name
    if library.is_file():
        _write_state({"key": key, "library": library.name})
        return Outcome(library)
    names = ", ".join(f"sm_{arch}" for arch in recipe.archs)
    say(
        f"building the CUDA extension for {names} with nvcc {recipe.version}, once, {limit_s / 60:.0f} minutes at"
        " most ..."
    )
    try:
        build(recipe, library, limit_s)
    except BuildError as error:
        _write_state({"key": key, "error": str(error)})
        return Outcome(None, str(error))
    _write_state({"key": key, "library": library.name})
    return Outcome(library, built=True)


def find_nvcc(environ: Mapping[str, str] = os.environ) -> Path | None:
    """nvcc from CUDA_HOME or CUDA_PATH, PATH, or CUDA's usual folder."""
    name = "nvcc.exe" if sys.platform == "win32" else "nvcc"
    homes = [environ[variable] for variable in ("CUDA_HOME", "CUDA_PATH") if environ.get(variable)]
    for home in homes:
        if (Path(home) / "bin" / name).is_file():
            return Path(home) / "bin" / name
    found = shutil.which(name, path=environ.get("PATH", ""))
    if found is None and sys.platform != "win32":
        found = shutil.which("/usr/local/cuda/bin/nvcc")
    return Path(found) if found else None


def make_recipe(nvcc: Path, environ: Mapping[str, str]) -> Recipe:
    """Ask nvcc for its version and its architectures, and nvidia-smi for the GPUs.

    Raises:
        BuildError: nvcc can't be used, or there is nothing to build for; :class:`Hangs`, a tool gave no answer.
    """
    release = re.search(r"release (\d+)\.(\d+)", _output([str(nvcc), "--version"]) or "")
    if release is None:
        raise BuildError(f"{nvcc} --version gave no version")
    if sys.platform == "win32":
        if _visual_c() is None and shutil.which("cl") is None:
            raise BuildError("nvcc needs Microsoft's C++ compiler (Visual Studio Build Tools), which was not found")
    elif shutil.which("gcc", path=environ.get("PATH")) is None and not environ.get("NVCC_CCBIN"):
        raise BuildError("nvcc needs gcc and g++, which were not found")
    major = int(release[1])
    listed = _output([str(nvcc), "--list-gpu-arch"]) or ""
    supported = sorted({int(arch) for arch in re.findall(r"compute_(\d+)", listed)})
    wanted = environ.get("SFAST_CUDA_ARCHS")
    archs = tuple(re.findall(r"\d+[a-z]?", wanted.replace(".", ""))) if wanted else gpu_archs(environ, major)
    archs = tuple(sorted({arch for arch in archs if not supported or int(arch.rstrip("af")) in supported}))
    if not archs:
        raise BuildError(f"nvcc {release[1]}.{release[2]} can't build for this GPU")
    return Recipe(nvcc, f"{release[1]}.{release[2]}", archs, str(max(OLDEST_ARCH, *supported[:1])))


def gpu_archs(environ: Mapping[str, str], cuda_major: int) -> tuple[str, ...]:
    """The architectures of this machine's GPUs that the kernels can run on.

    Raises:
        BuildError: there is none; :class:`Hangs`, nvidia-smi gave no answer.
    """
    smi = shutil.which("nvidia-smi", path=environ.get("PATH", "")) or shutil.which("/usr/lib/wsl/lib/nvidia-smi")
    listed = _output([smi, "--query-gpu=compute_cap", "--format=csv,noheader"]) if smi else None
    capabilities = {
        int(major) * 10 + int(minor) for major, minor in re.findall(r"^(\d+)\.(\d)\s*$", listed or "", re.MULTILINE)
    }
    if not capabilities:
        raise BuildError("no NVIDIA GPU found")
    able = sorted(capability for capability in capabilities if capability >= OLDEST_ARCH)
    if not able:
        raise BuildError(f"the GPU's compute capability is below {OLDEST_ARCH / 10}")
    # 9.0 has instructions that only code for exactly this architecture may use; CUDA 11 doesn't know the name.
    return tuple("90a" if capability == 90 and cuda_major >= 12 else str(capability) for capability in able)


def build(recipe: Recipe, library: Path, limit_s: float = LIMIT_S) -> None:
    """Compile in a temporary folder beside ``library``, then move it there. Older libraries go.

    Raises:
        BuildError: nvcc failed, gave nothing, or took longer than ``limit_s``.
    """
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(library.parent)
        folder = Path(tempfile.mkdtemp(prefix=".build-", dir=library.parent))
    except OSError as error:
        raise BuildError(f"{library.parent} can't be written: {error.strerror}") from error
    try:
        output = folder / library.name
        _compile(recipe.command(output), folder, limit_s)
        if not output.is_file() or output.stat().st_size == 0:
            raise BuildError("nvcc reported success and wrote no library")
        os.replace(output, library)
    except OSError as error:
        raise BuildError(f"the library can't be put in place: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for other in library.parent.glob(f"sfast-*{SUFFIX}"):
        if other != library:
            _remove_quietly(other)


def _compile(command: Sequence[str], folder: Path, limit_s: float) -> None:
    """Run nvcc and what it starts as one group, so that all of it can be ended."""
    environ = {**os.environ, "TMPDIR": str(folder), "TMP": str(folder), "TEMP": str(folder)}
    log = folder / "nvcc.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environ,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"nvcc was stopped after {limit_s:.0f} s") from error
        finally:
            if process.poll() is None:  # too slow, or interrupted from the keyboard
                _end_group(process)
    if code != 0:
        lines = log.read_text(errors="replace").splitlines()
        told = next(
            (line for line in lines if "error" in line.lower()), next((line for line in lines if line.strip()), "")
        )
        raise BuildError(f"nvcc ended with {code}: {told.strip()[:300]}")


def _end_group(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        subprocess.run(["taskkill", "/F", "/T", "/PID", str(process.pid)], capture_output=True, check=False)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a tool that waits for a broken driver can't be ended
        process.wait(timeout=_END_S)


def _visual_c() -> Path | None:
    """Visual Studio's newest C++ compiler where it isn't on PATH (nvcc sets up the rest of its environment)."""
    if sys.platform != "win32" or shutil.which("cl"):
        return None
    pattern = "Microsoft Visual Studio/*/*/VC/Tools/MSVC/*/bin/Hostx64/x64/cl.exe"
    roots = [os.environ.get(variable) for variable in ("ProgramFiles", "ProgramFiles(x86)")]
    found = [path for root in roots if root for path in Path(root).glob(pattern)]
    return max(found, key=lambda path: path.stat().st_mtime).parent if found else None


def _quick_key(nvcc: Path, environ: Mapping[str, str]) -> str:
    """What can be known of a build without starting a process."""
    real = nvcc.resolve()
    gpus = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        gpus += [
            line for line in path.read_text(errors="replace").splitlines() if line.startswith(("Model", "GPU UUID"))
        ]
    return _digest([source_hash(), str(real), str(real.stat().st_mtime_ns), environ.get("SFAST_CUDA_ARCHS", ""), *gpus])


def _read_state() -> dict[str, object]:
    try:
        state = json.loads((LIBRARIES / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _is_over(until: object) -> bool:
    """Whether a time has come, which some errors last to; those without last."""
    return isinstance(until, (int, float)) and not time.time() < until <= time.time() + _PROBE_AGAIN_S


def _write_state(state: Mapping[str, str | float]) -> None:
    try:
        LIBRARIES.mkdir(parents=True, exist_ok=True)
        draft = LIBRARIES / f".state-{os.getpid()}.json"
        draft.write_text(json.dumps(state), encoding="utf-8")
        os.replace(draft, LIBRARIES / "state.json")
    except OSError:
        pass  # a folder that can't be written costs a second look at the next start


def _remove_stale(libraries: Path) -> None:
    """Drop what a build left that was ended from outside (one that runs now is younger)."""
    for path in libraries.glob(".build-*"):
        if time.time() - path.stat().st_mtime > _STALE_S:
            shutil.rmtree(path, ignore_errors=True)


def _remove_quietly(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass  # Windows: another process has it loaded


def _output(command: Sequence[str]) -> str | None:
    """What a short command prints, or None where it fails.

    Raises:
        Hangs: it didn't end in PROBE_LIMIT_S. All that it started is ended.
    """
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:
        return None
    try:
        told, _ = process.communicate(timeout=PROBE_LIMIT_S)
    except subprocess.TimeoutExpired:
        _end_group(process)  # or what it left behind
        raise Hangs(f"{' '.join(command[:2])} gave no answer in {PROBE_LIMIT_S:.0f} s") from None
    finally:
        if process.poll() is None:  # interrupted from the keyboard
            _end_group(process)
        if process.stdout is not None:
            process.stdout.close()
    return told.decode(errors="replace") if process.returncode == 0 else None


def _digest(parts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
