"""What became of the models' calls, for the application to show."""

from __future__ import annotations

from sfast_core.reporting.report import Report, versions

from .install import STATES


def report() -> Report:
    """Of all models that are alive."""
    return Report([state.engine.report for state in STATES.all()], versions())
