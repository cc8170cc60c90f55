"""Reads a saved report, the JSON of ``GET /fast_compile/report``, back."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .reason import HOSTS, PYTHON, Reason
from .reasons import KINDS
from .report import ModuleReport, Report
from .signature_report import SignatureReport


def read_report(path: Path) -> Report:
    """The report in a file.

    Raises:
        OSError: the file can't be read.
        ValueError: it is no report; the message says what is wrong in it.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("it is no text file") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    return report_from(data)


def report_from(data: Any) -> Report:
    """The report that ``Report.as_dict`` gave, perhaps of another version: what isn't known here is left out.

    Raises:
        ValueError: ``data`` is no such report; the message says what is missing or of the wrong kind.
    """
    modules = _typed(data, "modules", list, "the report")
    versions = {str(name): str(version) for name, version in _typed(data, "versions", dict, "the report").items()}
    return Report([_module(found, f"modules[{place}]") for place, found in enumerate(modules)], versions)


def _module(data: Any, where: str) -> ModuleReport:
    kept = _kept(ModuleReport, data, where)
    signatures = [
        SignatureReport(**_kept(SignatureReport, found, f"{where}.signatures[{place}]"))
        for place, found in enumerate(kept.pop("signatures", []))
    ]
    kept |= {name: Counter(kept[name]) for name in ("calls", "reasons", "answered") if name in kept}
    codes = _typed(data, "codes", dict, where) if "codes" in data else {}
    known = {
        reason: Reason(reason, KINDS[code]) if (code := codes.get(reason)) in KINDS else reason
        for reason in kept.get("reasons", ())
    }
    kept["reasons"] = Counter({known[reason]: count for reason, count in kept.get("reasons", {}).items()})
    if kept.get("host") not in HOSTS:
        kept["host"] = PYTHON
    return ModuleReport(**kept, signatures=signatures)


def _kept(kind: Any, data: Any, where: str) -> dict[str, Any]:
    """The fields of ``kind`` that ``data`` has, each of the type that its default has."""
    first = fields(kind)[0].name  # the one without a default
    kept = {first: _typed(data, first, str, where)}
    for name, default in asdict(kind("")).items():
        if name != first and name in data:
            kept[name] = data[name] if default is None else _typed(data, name, _type_of(default), where)
    for name in ("impls", "refused"):
        for op in kept.get(name, {}):
            _typed(kept[name], op, dict, f"{where}.{name}")
    return kept


def _type_of(default: Any) -> Any:
    return dict if isinstance(default, dict) else (int, float) if isinstance(default, float) else type(default)


def _typed(data: Any, name: str, kind: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise ValueError(f"{where}: got a {type(data).__name__}, needs an object")
    if name not in data:
        raise ValueError(f"{where}: there is no {name!r}")
    if not isinstance(data[name], kind):
        wanted = "number" if isinstance(kind, tuple) or kind is int else kind.__name__
        raise ValueError(f"{where}.{name}: got a {type(data[name]).__name__}, needs a {wanted}")
    return data[name]
