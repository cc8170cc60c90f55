"""A mode that sees each of PyTorch's operators."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorMode(TorchDispatchMode):
    """Operators on functions are seen, too, and nothing large is imported for it."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Or torch._dynamo is imported for it, which takes seconds."""
        return False
