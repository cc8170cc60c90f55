"""``GET /fast_compile/report``: the report of every compiled model, as JSON.

``GET /fast_compile/status``: what the nodes' badges show.

``report?name=SD15`` leaves out the others; ``report?format=text`` gives what the report's text says of them,
``format=parts`` the same in three parts. ``status?workflow=ID``: of the nodes of this workflow of the editor's.
``docs/NAME.md``: a page of the documents, to read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from . import document

ROUTE = "/fast_compile/report"
STATUS = "/fast_compile/status"
DOCS = "/fast_compile/docs/{name}"
PICTURES = "/fast_compile/docs/{folder}/{name}"


def add_routes() -> None:
    """Add the routes to ComfyUI's server.

    Without a server (ComfyUI as a library), or a second time, there is nothing to do.
    """
    from ..sfast_core.hosts.comfy.events import server

    found = server()
    if found is None or any(getattr(route, "path", None) == ROUTE for route in found.routes):
        return
    from aiohttp import web

    @found.routes.get(ROUTE)
    async def report(request: Any) -> web.Response:
        # Not in the server's own thread, which others wait for: a long report takes milliseconds. It waits for no call
        # that is running.
        form = request.query.get("format", "json")
        names = request.query.getall("name", [])
        language = request.query.get("language", "en")
        text = await asyncio.get_running_loop().run_in_executor(None, report_text, form, names, language)
        return web.Response(text=text, content_type="text/plain" if form == "text" else "application/json")

    @found.routes.get(STATUS)
    async def status(request: Any) -> web.Response:
        from ..sfast_core.hosts.comfy.board import board

        return web.json_response(
            await asyncio.get_running_loop().run_in_executor(None, board, request.query.get("workflow"))
        )

    @found.routes.get(DOCS)
    async def page(request: Any) -> web.Response:
        text = document.page(request.match_info["name"])
        return (
            web.Response(status=404)
            if text is None
            else web.Response(text=text, content_type="text/html", charset="utf-8")
        )

    @found.routes.get(PICTURES)
    async def picture(request: Any) -> web.StreamResponse:
        path = document.picture(request.match_info["folder"], request.match_info["name"])
        return web.Response(status=404) if path is None else web.FileResponse(path)


def report_text(form: str = "json", names: Sequence[str] = (), language: str = "en") -> str:
    """The report, taken while another thread may be sampling.

    Args:
        form: ``json``, ``text`` to read, or ``parts`` of that text as JSON.
        names: of the models; none, for all of them.
        language: of the parts, such as ``zh``.
    """
    from ..sfast_core.hosts import comfy
    from ..sfast_core.hosts.comfy.board import with_measured
    from ..sfast_core.reporting.report import read_while_counting
    from ..sfast_core.reporting.translated import speaker

    def read() -> str:
        found = with_measured(comfy.report())
        if names:
            found.modules = [module for module in found.modules if module.name in names]
        return (
            found.text()
            if form == "text"
            else json.dumps(found.parts(speaker(language)) if form == "parts" else found.as_dict())
        )

    return read_while_counting(read)
