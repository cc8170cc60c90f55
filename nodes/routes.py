"""``GET /fast_compile/report``: the report of every compiled model, as JSON."""

from __future__ import annotations

from typing import Any

ROUTE = "/fast_compile/report"


def add_routes() -> None:
    """Add the route to ComfyUI's server; without a server (ComfyUI as a library) there is nothing to do."""
    from server import PromptServer

    server = getattr(PromptServer, "instance", None)
    if server is None:
        return
    from aiohttp import web

    from ..sfast_core.hosts import comfy

    @server.routes.get(ROUTE)
    async def report(_: Any) -> web.Response:
        return web.json_response(comfy.report().as_dict())
