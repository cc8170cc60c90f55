"""A linear layer by itself. Its meaning is PyTorch's own function: what no pass has fused is found as it stands in the graph."""

from __future__ import annotations

import torch.nn.functional as F

from ..cublaslt import IMPLS, family
from ..few_rows import IMPL
from ..spec import Op

__all__ = ["OP"]

OP = Op(name="linear", reference=F.linear, impls=(IMPL, *IMPLS), measured=True, family=family)
