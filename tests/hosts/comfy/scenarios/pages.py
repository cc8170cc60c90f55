"""Translations and node pages: complete, and in English the words of the nodes themselves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from driver import PACK, ROOT

LANGUAGES = ("en", "zh")


def _schemas() -> dict[str, Any]:
    async def nodes() -> list[Any]:
        listed: list[Any] = await (await PACK.comfy_entrypoint()).get_node_list()
        return listed

    return {kind.GET_SCHEMA().node_id: kind.GET_SCHEMA() for kind in asyncio.run(nodes())}


def _translation(language: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "locales" / language / "nodeDefs.json").read_text("utf-8"))
    return found


def _words(schema: Any) -> dict[str, Any]:
    """What a schema says, in the form of a translation."""
    return {
        "display_name": schema.display_name,
        "description": schema.description,
        "inputs": {item.id: {"name": item.display_name or item.id, "tooltip": item.tooltip} for item in schema.inputs},
        "outputs": {
            str(place): {"name": item.display_name or item.io_type, "tooltip": item.tooltip}
            for place, item in enumerate(schema.outputs)
        },
    }


def scenario_english_is_what_the_nodes_say() -> None:
    schemas, found = _schemas(), _translation("en")
    assert set(found) == set(schemas)
    for name, schema in schemas.items():
        assert found[name] == _words(schema), name


def scenario_every_translation_is_complete() -> None:
    for language in LANGUAGES:
        found = _translation(language)
        assert list(found) == sorted(_schemas())
        for name, schema in _schemas().items():
            words = _words(schema)
            assert set(found[name]) == set(words) and list(found[name]["inputs"]) == list(words["inputs"])
            assert list(found[name]["outputs"]) == list(words["outputs"])
            entries = [found[name], *found[name]["inputs"].values(), *found[name]["outputs"].values()]
            assert all(text for entry in entries for text in entry.values()), f"{language}: {name} has an empty text"


def scenario_every_node_and_input_has_its_place_in_a_page() -> None:
    schemas = _schemas()
    assert {folder.name for folder in (ROOT / "web" / "docs").iterdir()} == set(schemas)
    for name, schema in schemas.items():
        for language in LANGUAGES:
            page, words = (
                (ROOT / "web" / "docs" / name / f"{language}.md").read_text("utf-8"),
                _translation(language)[name],
            )
            assert page.startswith(f"# {words['display_name']}\n"), f"{language}: {name}"
            for item in schema.inputs:
                row = next(
                    (line for line in page.splitlines() if line.startswith("|") and f"`{item.id}`" in line), None
                )
                assert row is not None and words["inputs"][item.id]["tooltip"] in row, f"{language}: {name}.{item.id}"
            assert all(entry["tooltip"] in page for entry in words["outputs"].values()), f"{language}: {name}"


def scenario_what_a_tooltip_says_of_defaults_and_ids() -> None:
    """Ids without spaces, found by the editor's search; every node with a description."""
    for name, schema in _schemas().items():
        assert name.isidentifier() and schema.category == "model/fast compile" and len(schema.description) > 60
