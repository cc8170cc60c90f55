"""PyTorch in a folder that is reached by a link, as where an environment was moved: its code names its files by the
link.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import torch, torch.nn.functional as F
from torch import nn
from sfast_core import CompileConfig, compile

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        return F.silu(self.linear(x))

net, x = Net().eval().requires_grad_(False), torch.randn(2, 8)
twin = Net().eval().requires_grad_(False)
twin.load_state_dict(net.state_dict())
handle = compile(net, CompileConfig(allow_cpu=True))
def thrice(function):
    return lambda *args, **kwargs: function(*args, **kwargs) * 3

own = F.silu
with torch.no_grad():
    for function in (own, thrice(own), own):
        F.silu = function
        for _ in range(3):
            torch.testing.assert_close(handle(x), twin(x))
print(torch.__file__, dict(handle.engine.report.calls))
"""


def test_a_function_of_torchs_that_is_replaced_acts(tmp_path: Path) -> None:
    linked = tmp_path / "packages"
    try:
        linked.symlink_to(Path(torch.__file__).parents[1], target_is_directory=True)
    except OSError as error:  # Windows wants a right for it
        pytest.skip(f"no links here: {error}")
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(linked), str(ROOT)])}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=variables, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert str(linked) in ran.stdout and "fused" in ran.stdout
