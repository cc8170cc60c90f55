"""``GET /fast_compile/report``: the report of every UNet, as JSON; the same as ComfyUI's."""

from __future__ import annotations

from typing import Any

from ...reporting.report import Report
from .accelerator import Accelerator

ROUTE = "/fast_compile/report"


def add_route(app: Any, accelerator: Accelerator) -> None:
    """Add the route to the webui's FastAPI application, in place of one from before a reload."""
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", None) != ROUTE]

    def report() -> Any:
        return accelerator.read(Report.as_dict)

    app.add_api_route(ROUTE, report, methods=["GET"])
