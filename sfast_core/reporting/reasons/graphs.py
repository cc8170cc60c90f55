"""Why calls run fused and without a CUDA graph."""

from __future__ import annotations

from ..reason import REPORT, Kind
from .advice import WHOSE

NO_CUDA = Kind(
    "no-cuda",
    "there is no CUDA device",
    "The model is compiled for the CPU, for tests.",
    "nothing is faster without an NVIDIA GPU that PyTorch sees: run `python -m sfast_core doctor`",
)
GRAPHS_OFF = Kind(
    "graphs-off",
    "turned off in the settings",
    "The switch cuda_graphs of the node, or of the config, is off.",
    "turn cuda_graphs on if there is enough memory",
)
TOO_LARGE = Kind(
    "too-large",
    "for a picture as large as this a graph saves no time, and takes memory from the diffusion model",
    "For example a VAE's large picture, whose kernels take longer than launching them.",
    "nothing: it is as fast without one",
)
SHORT_LIVED = Kind(
    "short-lived",
    "its graphs were lost before they had served {calls} calls each, because weights moved or memory was needed",
    "The GPU has no room for all models of the workflow, and a picture has few steps:"
    " capturing graphs would cost more than they save.",
    "nothing: a graph is captured again once it is likely to stay",
)
FROM_PYTHON = Kind(
    "from-python",
    "{name} copies values from the CPU at each call",
    "Code within the model makes a tensor from Python numbers.",
    WHOSE,
)
ON_ANOTHER = Kind(
    "on-another",
    "{name} is on {where}",
    "Code within the model computes on another device, such as the CPU.",
    WHOSE,
)
NOT_CAPTURED = Kind(
    "not-captured",
    "capturing failed: {error}",
    "A kernel inside can't be captured.",
    REPORT,
)
