"""The source of random forwards that are given a cache, and what may be done to that between two calls.

``look(cache, name)``, ``put(cache, name, value)`` and ``has(cache, name)`` reach what is in a dict or an object.
"""

from __future__ import annotations

import random

#: A cache has the tensors t and u, the list l, the dict d, the number n, the word w, and o, an object or dict with t, n
#: and l again. ``y`` is what the forward has computed so far.
_STEPS = (
    "put(cache, 't', look(cache, 't') * 0.5 + y)",
    "put(cache, 'u', y * 2)",
    "put(cache, 't', look(cache, 't')[:, :].clone())",
    "put(cache, 'u', look(cache, 't'))",
    "put(cache, 'v', look(cache, 't')[0])",
    "put(cache, 'n', look(cache, 'n') + 1)",
    "put(cache, 'w', look(cache, 'w') + 'b' if len(look(cache, 'w')) < 3 else 'a')",
    "put(cache, 'o2', look(cache, 'o'))",
    "put(cache, 'new', [y, look(cache, 'n')])",
    "put(cache, 'tup', (y, look(cache, 'n'), look(cache, 't')))",
    "put(cache, 'big', torch.cat([look(cache, 'big'), y])[-4:] if has(cache, 'big') else y)",
    "look(cache, 't').mul_(0.5)",
    "look(cache, 't').add_(y)",
    "look(cache, 't').copy_(y)",
    "look(cache, 't')[0] = y[1]",
    "look(cache, 'u').add_(1)",
    "look(cache, 'l').append(y)",
    "look(cache, 'l')[0] = y + 1",
    "look(cache, 'l')[0].mul_(0.9)",
    "look(cache, 'l').insert(0, x * 2)",
    "look(cache, 'l').reverse()",
    "del look(cache, 'l')[2:]",
    "look(cache, 'd')['k'] = y",
    "look(cache, 'd').setdefault('z', x * 3)",
    "look(cache, 'd').pop('z', None)",
    "look(cache, 'd')['m'] = [y, look(cache, 't')]",
    "look(cache, 'd')['g'] = {'q': y}",
    "put(look(cache, 'o'), 't', y)",
    "put(look(cache, 'o'), 'n', look(look(cache, 'o'), 'n') + 1)",
    "look(look(cache, 'o'), 't').add_(0.5)",
    "look(look(cache, 'o'), 'l').append(y)",
    "y = y + look(cache, 't')",
    "y = y + look(cache, 'u').mean()",
    "y = y + look(look(cache, 'o'), 't')",
    "y = y + look(look(cache, 'o'), 'l')[-1]",
    "y = y + look(cache, 'd').get('k', 0)",
    "y = y + (look(cache, 'big').sum(0) if has(cache, 'big') else 0)",
    "y = y * (1 + look(cache, 'n') % 2)",
    "y = y + self.scale",
    "self.kept = y * 1",
)
_RESULTS = (
    "y",
    "y * 2",
    "(y, look(cache, 't'))",
    "(y, look(cache, 't')[0])",
    "[y, look(cache, 'l')]",
    "(y, look(cache, 'n'))",
    "{'y': y, 'c': cache}",
    "{'y': y, 'o': look(cache, 'o')}",
)
_CHANGES = (
    "put(cache, 'n', 0)",
    "put(cache, 't', torch.ones(2, 8))",
    "put(cache, 'u', look(cache, 't'))",
    "put(cache, 'l', [torch.ones(2, 8), None])",
    "look(cache, 't').mul_(2)",
    "look(cache, 'l')[0] = torch.zeros(2, 8)",
    "look(cache, 'd').clear()",
    "module.scale += 1",
)


def cached_source(draw: random.Random) -> str:
    """A forward of ``(self, x, cache)``, as source; the module has ``linear``, ``scale`` and ``kept``."""
    steps = [draw.choice(_STEPS) for _ in range(draw.randint(2, 7))]
    lines = ["y = self.linear(x)", *steps, f"return {draw.choice(_RESULTS)}"]
    return "\n    ".join(["def forward(self, x, cache):", *lines]) + "\n"


def change(draw: random.Random) -> str:
    """A statement about ``module`` and ``cache``, often none."""
    return draw.choice(("pass",) * 4 + _CHANGES)
