"""A linear layer and the residual that is added to its result."""

from __future__ import annotations

from ..cublaslt import IMPLS, family
from ..few_rows import IMPL
from ..spec import Op
from .reference import linear_add

__all__ = ["OP", "linear_add"]

OP = Op(name="linear_add", reference=linear_add, impls=(IMPL, *IMPLS), measured=True, family=family, reference_competes=False, optional=True)
