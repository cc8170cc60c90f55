"""What PyTorch's settings allow kernels that aren't PyTorch's own; PyTorch's obey the settings by themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch

CUDNN, CUDNN_ATTENTION, FLASH, EFFICIENT = "cuDNN", "cuDNN's attention", "flash attention", "memory-efficient attention"


@dataclass(frozen=True)
class Numerics:
    """The settings under which a trace was made. The defaults here are PyTorch's.

    Attributes:
        fp16_accumulation: products of float16 may be summed in float16
            (``torch.backends.cuda.matmul.allow_fp16_accumulation``).
        tf32: products of float32 may round what they multiply to TF32.
        deterministic: only algorithms that promise the same bits at every run are wanted. All kernels of ours do; of
            PyTorch's, its documentation leaves some out.
        switched_off: libraries that may not be used: :data:`CUDNN`, :data:`CUDNN_ATTENTION`, :data:`FLASH`,
            :data:`EFFICIENT`.
    """

    fp16_accumulation: bool = False
    tf32: bool = False
    deterministic: bool = False
    switched_off: frozenset[str] = frozenset()

    @classmethod
    def now(cls) -> Numerics:
        """The settings here and now."""
        backends = torch.backends
        switches = {
            CUDNN: backends.cudnn.enabled,
            CUDNN_ATTENTION: backends.cuda.cudnn_sdp_enabled(),
            FLASH: backends.cuda.flash_sdp_enabled(),
            EFFICIENT: backends.cuda.mem_efficient_sdp_enabled(),
        }
        return cls(
            fp16_accumulation=bool(getattr(torch._C, "_get_cublas_allow_fp16_accumulation", bool)()),
            tf32=_allows_tf32(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            switched_off=frozenset(name for name, on in switches.items() if not on),
        )

    def key(self) -> str:
        """The part of a choice's key for these settings: under others other kernels compete. Empty for the defaults."""
        allowed = [name for name in ("fp16_accumulation", "tf32", "deterministic") if getattr(self, name)]
        return "".join(f" {word}" for word in (*allowed, *(f"without {name}" for name in sorted(self.switched_off))))


def convolutions_round() -> bool:
    """Whether convolutions of float32 may round what they multiply to TF32 on a GPU, as PyTorch has it by default."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # settings of old and of new are mixed
        return False


def _allows_tf32() -> bool:
    newer = getattr(torch._C, "_get_fp32_precision_getter", None)
    return newer("cuda", "matmul") == "tf32" if newer else bool(torch._C._get_cublas_allow_tf32())
