"""What a forward may leave behind, or find again that an earlier call has left: as source text, for files that are imported twice.

``m`` in ``side`` is the module; ``l`` and ``d`` are a list and a dict that the caller passes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effect:
    """One kind.

    Attributes:
        forward: the forward's body, with ``self``, ``x`` (2 x 8 in most) and, where ``arguments``, ``l`` and ``d``.
        init: what ``__init__`` does.
        top: what the file has in front of the class.
        side: an expression for what others see of it between the calls.
        train: whether the module is in training mode.
        arguments: whether the caller passes a list and a dict, new ones at each call; what becomes of them is compared.
        kept: whether one list and one dict are passed at all calls.
        fused: whether it is to be fast: what is left behind can be made again from the program's results and is read by nothing.
        at_once: whether its first call is traced: nothing that is set there is taken for what it reads.
        draws: whether it draws random numbers: seeds are set in front of each call.
    """

    forward: str
    init: str = "pass"
    top: str = ""
    side: str = "None"
    train: bool = False
    arguments: bool = False
    kept: bool = False
    fused: bool = False
    at_once: bool = False
    draws: bool = False


_GENERATED = "def numbers():\n    n = 0\n    while True:\n        n += 1\n        yield float(n)"

COUNTERS = {
    "an attribute": Effect("self.n += 1\nreturn x * self.n", "self.n = 0", side="m.n"),
    "a private attribute": Effect("self._n += 1\nreturn self.linear(x) * self._n", "self._n = 0", side="m._n"),
    "an attribute behind the use": Effect("y = x * self.n\nself.n += 1\nreturn y", "self.n = 1", side="m.n"),
    "an attribute that only others read": Effect("self.n += 1\nreturn self.linear(x)", "self.n = 0", side="m.n"),
    "a float attribute": Effect("self.n += 0.5\nreturn x * self.n", "self.n = 0.0", side="m.n"),
    "an attribute by setattr": Effect("setattr(self, 'n', getattr(self, 'n') + 1)\nreturn x * self.n", "self.n = 0", side="m.n"),
    "an attribute by a computed name": Effect("n = f'n{len(x)}'\nsetattr(self, n, getattr(self, n) + 1)\nreturn x * getattr(self, n)", "self.n2 = 0", side="m.n2"),
    "an attribute by a name that it is given": Effect("setattr(self, self.n, getattr(self, self.n) + 1)\nreturn x * self.step", "self.n, self.step = 'step', 0", side="m.step"),
    "an attribute by __dict__": Effect("self.__dict__['n'] = self.__dict__['n'] + 1\nreturn x * self.n", "self.n = 0", side="m.n"),
    "an attribute by vars().update": Effect("vars(self).update(n=self.n + 1)\nreturn x * self.n", "self.n = 0", side="m.n"),
    "an attribute by object.__setattr__": Effect("object.__setattr__(self, 'n', self.n + 1)\nreturn x * self.n", "self.n = 0", side="m.n"),
    "a child's attribute": Effect("self.linear.n += 1\nreturn self.linear(x) * self.linear.n", "self.linear.n = 0", side="m.linear.n"),
    "a list": Effect("self.n[0] += 1\nreturn x * self.n[0]", "self.n = [0]", side="m.n"),
    "a dict": Effect("self.n['n'] = self.n.get('n', 0) + 1\nreturn x * self.n['n']", "self.n = {}", side="m.n"),
    "a dict of dicts": Effect("self.n['a']['n'] += 1\nreturn x * self.n['a']['n']", "self.n = {'a': {'n': 0}}", side="m.n"),
    "a defaultdict": Effect("self.n['n'] += 1\nreturn x * self.n['n']", "self.n = collections.defaultdict(int)", side="dict(m.n)"),
    "a Counter": Effect("self.n.update('a')\nreturn x * self.n['a']", "self.n = collections.Counter()", side="dict(m.n)"),
    "a set": Effect("self.n.add(len(self.n))\nreturn x * len(self.n)", "self.n = set()", side="sorted(m.n)"),
    "an array": Effect("self.n[0] += 1\nreturn x * self.n[0]", "self.n = array.array('i', [0])", side="list(m.n)"),
    "a numpy array": Effect("self.n += 1\nreturn x * float(self.n[0])", "self.n = np.zeros(1)", side="m.n.tolist()"),
    "a bytearray": Effect("self.n.append(1)\nreturn x * len(self.n)", "self.n = bytearray()", side="len(m.n)"),
    "an object": Effect("self.box.k += 1\nreturn x * self.box.k", "self.box = Box(0)", side="m.box.k"),
    "an object's method": Effect("return x * self.box.next()", "self.box = Own(0)", "class Own(Box):\n    def next(self):\n        self.k += 1\n        return self.k",
                                 side="m.box.k"),
    "an object's __call__": Effect("return self.box(x)", "self.box = Own(0)", "class Own(Box):\n    def __call__(self, x):\n        self.k += 1\n        return x * self.k",
                                   side="m.box.k"),
    "a slot": Effect("self.box.n += 1\nreturn x * self.box.n", "self.box = Slots()", "class Slots:\n    __slots__ = ('n',)\n    def __init__(self): self.n = 0", side="m.box.n"),
    "an object in a list in a dict": Effect("self.d['a'][0].k += 1\nreturn x * self.d['a'][0].k", "self.d = {'a': [Box(0)]}", side="m.d['a'][0].k"),
    "a closure": Effect("return x * step()", top="def make():\n    n = 0\n    def step():\n        nonlocal n\n        n += 1\n        return n\n    return step\nstep = make()",
                        side="step.__closure__[0].cell_contents"),
    "a closure's list": Effect("return x * step()", top="def make():\n    n = [0]\n    def step():\n        n[0] += 1\n        return n[0]\n    return step\nstep = make()"),
    "an instance's function": Effect("return self.f(x)", "self.f = make()",
                                     "def make():\n    n = 0\n    def f(x):\n        nonlocal n\n        n += 1\n        return x * n\n    return f"),
    "a global": Effect("global G\nG += 1\nreturn x * G", top="G = 0", side="G"),
    "a global in a function": Effect("step()\nreturn x * G", top="G = 0\ndef step():\n    global G\n    G += 1", side="G"),
    "a global by globals()": Effect("globals()['G'] += 1\nreturn x * G", top="G = 0", side="G"),
    "a global list": Effect("G.append(1)\nreturn x * len(G)", top="G = []", side="len(G)"),
    "a global dict": Effect("G['n'] += 1\nreturn x * G['n']", top="G = {'n': 0}", side="G"),
    "a global object": Effect("G.k += 1\nreturn x * G.k", top="G = Box(0)", side="G.k"),
    "another file's global": Effect("other.n += 1\nreturn x * other.n", top="other = types.ModuleType('other')\nother.n = 0", side="other.n"),
    "a class's attribute": Effect("type(self).n += 1\nreturn x * self.n", "type(self).n = 0", side="type(m).n"),
    "a class's attribute, by type": Effect("c = type(self)\nc.n += 1\nreturn x * c.n", "type(self).n = 0", side="type(m).n"),
    "a class's attribute, by __class__": Effect("self.__class__.n += 1\nreturn x * self.__class__.n", "type(self).n = 0", side="type(m).n"),
    "a class's attribute, in a class method": Effect("return x * self.step()", "type(self).n, type(self).step = 0, classmethod(step)",
                                                     "def step(cls):\n    cls.n += 1\n    return cls.n", side="type(m).n"),
    "a child's class's attribute": Effect("c = type(self.linear)\nc.n += 1\nreturn x * c.n", "self.linear = Own(8, 8)\nOwn.n = 0", "class Own(nn.Linear): pass", side="Own.n"),
    "a class's list": Effect("self.ns.append(1)\nreturn x * len(self.ns)", "type(self).ns = []", side="type(m).ns"),
    "a function's attribute": Effect("step()\nreturn x * step.n", top="def step(): step.n += 1\nstep.n = 0", side="step.n"),
    "a function's default": Effect("return x * step()", top="def step(n=[0]):\n    n[0] += 1\n    return n[0]", side="step.__defaults__"),
    "a property's setter": Effect("self.box.n = self.box.n + 1\nreturn x * self.box.n", "self.box = P()",
                                  "class P:\n    def __init__(self): self._n = 0\n    @property\n    def n(self): return self._n\n    @n.setter\n    def n(self, v): self._n = v",
                                  side="m.box.n"),
    "a deque": Effect("self.q.append(len(self.q))\nreturn x * self.q[-1]", "self.q = collections.deque([0], maxlen=3)", side="list(m.q)"),
    "a rotated deque": Effect("self.q.rotate(1)\nreturn x * self.q[0]", "self.q = collections.deque([1., 2., 3.])", side="list(m.q)"),
    "a list that is turned round": Effect("self.q.reverse()\nreturn x * self.q[0]", "self.q = [1., 2., 3.]", side="m.q"),
    "a list that is consumed": Effect("return x * self.q.pop(0)", "self.q = [float(i) for i in range(20)]", side="m.q"),
    "a dict that is consumed": Effect("return x * self.q.popitem()[1]", "self.q = {i: float(i) for i in range(20)}", side="m.q"),
    "a context variable": Effect("VAR.set(VAR.get() + 1)\nreturn x * VAR.get()", top="VAR = contextvars.ContextVar('steps', default=0)", side="VAR.get()"),
    "a thread's local": Effect("LOCAL.n += 1\nreturn x * LOCAL.n", top="LOCAL = threading.local()\nLOCAL.n = 0", side="LOCAL.n"),
    "the environment": Effect("os.environ[KEY] = os.environ.get(KEY, '') + 'a'\nreturn x * len(os.environ[KEY])", top="KEY = 'FAST_COMPILE_' + __name__.upper()",
                              side="os.environ.get(KEY)"),
    "a weak dict": Effect("self.w[self.linear] = self.w.get(self.linear, 0) + 1\nreturn x * self.w[self.linear]", "self.w = weakref.WeakKeyDictionary()",
                          side="list(m.w.values())"),
    "a walrus": Effect("return x * (self.step(n := self.n + 1) or n)", "self.n = 0\nself.step = lambda n: self.__dict__.update(n=n)", side="m.n"),
    "a with statement": Effect("with self.box:\n    return x * self.box.k", "self.box = Own(0)",
                               "class Own(Box):\n    def __enter__(self): self.k += 1\n    def __exit__(self, *a): self.k += 1", side="m.box.k"),
    "a tensor": Effect("self.n = self.n + 1\nreturn x * self.n", "self.n = torch.zeros(1)", side="m.n"),
    "a tensor in place": Effect("self.n += 1\nreturn x * self.n", "self.n = torch.zeros(1)", side="m.n"),
    "a buffer": Effect("self.n = self.n + 1\nreturn x * self.n", "self.register_buffer('n', torch.zeros(1))", side="m.n"),
    "a buffer in place": Effect("self.n.add_(1)\nreturn x * self.n", "self.register_buffer('n', torch.zeros(1))", side="m.n"),
    "a buffer in place behind the use": Effect("y = x * self.n\nself.n.add_(1)\nreturn y", "self.register_buffer('n', torch.zeros(1))", side="m.n"),
    "a buffer that only others read": Effect("self.n.add_(1)\nreturn self.linear(x)", "self.register_buffer('n', torch.zeros(1))", side="m.n"),
    "a cycle": Effect("self.i = (self.i + 1) % len(self.fs)\nreturn self.fs[self.i](x)", "self.i = 0\nself.fs = [torch.relu, torch.neg, torch.sin]", side="m.i"),
    "what edits in the first steps only": Effect("self.n += 1\ny = self.linear(x)\nreturn y * 3 if self.n <= 3 else y", "self.n = 0", side="m.n"),
    "a flag that turns": Effect("self.on = not self.on\nreturn x * 2 if self.on else x", "self.on = False", side="m.on"),
    "a flag for the first call": Effect("if self.first:\n    self.first = False\n    return x * 0\nreturn self.linear(x)", "self.first = True", side="m.first"),
}

ITERATORS = {
    "a generator": Effect("return x * next(self.it)", "self.it = numbers()", _GENERATED),
    "a global generator": Effect("return x * next(IT)", top=_GENERATED + "\nIT = numbers()"),
    "itertools.count": Effect("return x * next(self.it)", "self.it = itertools.count()", "import itertools"),
    "itertools.cycle": Effect("return x * next(self.it)", "self.it = itertools.cycle([1., 2., 3.])", "import itertools"),
    "a list's iterator": Effect("return x * next(self.it, 7.)", "self.it = iter([1., 2., 3.])"),
    "a map": Effect("return x * next(self.it)", "self.it = map(float, range(99))"),
    "an iterator in a dict": Effect("return x * next(self.d['it'])", "self.d = {'it': iter(range(99))}"),
    "an iterator in a partial": Effect("return x * self.f()", "self.f = functools.partial(next, iter(range(99)))"),
    "an iterator's __next__": Effect("return x * self.f()", "self.f = iter(range(99)).__next__"),
    "an iterator of its own class": Effect("return x * next(self.it)", "self.it = It()",
                                           "class It:\n    def __init__(self): self.n = 0\n    def __iter__(self): return self\n    def __next__(self):\n        self.n += 1\n        return self.n",
                                           side="m.it.n"),
    "a for loop over an iterator": Effect("for k in self.it:\n    return x * k", "self.it = iter(range(99))"),
    "zip over an iterator": Effect("return x * list(zip(self.it, [0]))[0][0]", "self.it = iter(range(99))"),
    "a file that is read": Effect("return x * len(self.f.readline())", "self.f = io.StringIO('a\\nbb\\nccc\\ndd\\ne\\nff\\nggg\\nhh\\n')", "import io", side="m.f.tell()"),
    "a queue": Effect("return x * self.q.get_nowait()", "self.q = queue.Queue()\nfor i in range(20): self.q.put(i)", "import queue", side="m.q.qsize()"),
    "random.Random": Effect("return x * self.r.random()", "self.r = random.Random(0)", "import random", side="m.r.getstate()[1][-1]"),
    "random.Random's choice": Effect("return x * self.r.choice([1., 2., 3., 4.])", "self.r = random.Random(0)", "import random"),
    "random": Effect("return x * random.random()", top="import random", draws=True),
    "numpy's Generator": Effect("return x * float(self.r.random())", "self.r = np.random.default_rng(0)"),
    "numpy's RandomState": Effect("return x * float(self.r.rand())", "self.r = np.random.RandomState(0)"),
    "numpy.random": Effect("return x * float(np.random.rand())", draws=True),
    "torch.Generator": Effect("return x + torch.randn(2, 8, generator=self.g)", "self.g = torch.Generator()\nself.g.manual_seed(0)", side="m.g.get_state()"),
    "a seed": Effect("torch.manual_seed(7)\nreturn self.linear(x)", side="torch.rand(2)"),
    "torch.rand": Effect("return x + torch.rand(2, 8)", draws=True),
    "torch.randn_like": Effect("return x + torch.randn_like(x)", draws=True),
    "normal_": Effect("return x + torch.empty(2, 8).normal_()", draws=True),
    "dropout": Effect("return F.dropout(x, 0.5, True)", draws=True),
    "dropout in training": Effect("return self.drop(x)", "self.drop = nn.Dropout(0.5)", train=True, draws=True),
    "torch.bernoulli": Effect("return torch.bernoulli(torch.sigmoid(x))", draws=True),
    "torch.randperm": Effect("return x[:, torch.randperm(8)]", draws=True),
    "rrelu in training": Effect("return F.rrelu(x, training=True)", draws=True),
    "the clock": Effect("self.seen = time.monotonic() > 0\nreturn self.linear(x) * (1 if self.seen else 2)", top="import time", side="m.seen"),
    "os.urandom": Effect("return x * (1 if len(os.urandom(2)) == 2 else 3)"),
}

CACHES = {
    "a cache of its layers', marked and forgotten within the call": Effect(
        "mark(self.linear)\ny = self.linear(x)\nfor m in self.modules():\n    if hasattr(m, 'kept'): m.kept.pop(1, None)\nreturn y",
        "self.linear = Keeping(8, 8)",
        "class Keeping(nn.Linear):\n    def __init__(self, *sizes):\n        super().__init__(*sizes)\n        self.kept = {}\n"
        "    def forward(self, x):\n        return super().forward(x) if self.kept.get(1, (None, False))[1] else x\n"
        "def mark(of):\n    for m in of.modules():\n        if isinstance(m, Keeping):\n            m.kept[1] = (m.kept.get(1, (None,))[0], True)",
        side="dict(m.linear.kept)",
        fused=True,
    ),
    "the previous output": Effect("y = self.linear(x)\nif self.prev is not None: y = y + self.prev\nself.prev = y\nreturn y", "self.prev = None", side="m.prev"),
    "a copy of the previous output": Effect("y = self.linear(x)\nif self._prev is not None: y = y + self._prev\nself._prev = y.clone()\nreturn y", "self._prev = None",
                                           side="m._prev"),
    "a detached previous output": Effect("y = self.linear(x)\nif self._prev is not None: y = y + self._prev\nself._prev = y.detach()\nreturn y", "self._prev = None",
                                        side="m._prev"),
    "the previous input": Effect("y = x + self.prev\nself.prev = x\nreturn y", "self.prev = torch.zeros(2, 8)", side="m.prev"),
    "a previous output in a buffer": Effect("y = self.linear(x) + self.prev\nself.prev = y\nreturn y", "self.register_buffer('prev', torch.zeros(2, 8))", side="m.prev"),
    "a previous output in a buffer registered anew": Effect("y = self.linear(x) + self.prev\nself.register_buffer('prev', y)\nreturn y",
                                                            "self.register_buffer('prev', torch.zeros(2, 8))", side="m.prev"),
    "a previous output by a computed name": Effect("n = f'prev{len(x)}'\ny = self.linear(x) + getattr(self, n, 0)\nsetattr(self, n, y)\nreturn y", side="m.prev2"),
    "a previous output in a dict": Effect("y = self.linear(x) + self.c.get('k', 0)\nself.c['k'] = y\nreturn y", "self.c = {}", side="m.c"),
    "a previous output in a list": Effect("y = self.linear(x) + self.c[0]\nself.c[0] = y\nreturn y", "self.c = [0.0]", side="m.c"),
    "a previous output in an object": Effect("y = self.linear(x) + self.box.k\nself.box.k = y\nreturn y", "self.box = Box(0.0)", side="m.box.k"),
    "a previous output in a global": Effect("global G\ny = self.linear(x) + G\nG = y\nreturn y", top="G = 0.0", side="G"),
    "a previous output in a global object": Effect("y = self.linear(x) + G.k\nG.k = y\nreturn y", top="G = Box(0.0)", side="G.k"),
    "a previous output in a closure": Effect("return self.f(self.linear(x))", "self.f = make()",
                                             "def make():\n    prev = 0.0\n    def f(y):\n        nonlocal prev\n        prev = y = y + prev\n        return y\n    return f"),
    "an output used again for some steps": Effect(
        "if self.n % 3 == 0: self.kept = self.linear(x)\nself.n += 1\nreturn self.kept", "self.n, self.kept = 0, None", side="(m.n, m.kept)"),
    "a first block's cache": Effect(
        "first = self.linear(x)\nsame = G.first is not None and bool((first - G.first).abs().mean() < 1.0)\nif not same: G.first, G.rest = first, torch.tanh(first) * 2\n"
        "G.used += same\nreturn first + G.rest", top="class Cache:\n    first, rest, used = None, None, 0\nG = Cache()", side="(G.first, G.rest, int(G.used))"),
    "a table for each length": Effect("n = x.shape[1]\nif n not in self.t: self.t[n] = torch.linspace(0, 1, n)\nreturn self.linear(x) * self.t[n]", "self.t = {}", side="m.t"),
    "a table in a list": Effect("if not self.t: self.t.append(torch.linspace(0, 1, 8))\nreturn self.linear(x) * self.t[0]", "self.t = []", side="m.t"),
    "a table that grows": Effect("if len(self.t) < x.shape[1]: self.t = torch.linspace(0, 1, x.shape[1])\nreturn self.linear(x) * self.t", "self.t = torch.zeros(0)", side="m.t"),
    "a table behind hasattr": Effect("if not hasattr(self, 't'): self.t = torch.linspace(0, 1, 8)\nreturn self.linear(x) * self.t", side="m.t"),
    "a table in an lru_cache": Effect("return self.linear(x) * table(8)", top="@functools.lru_cache\ndef table(n): return torch.linspace(0, 1, n)", side="table(8)"),
    "a table in a method's cache": Effect("return self.linear(x) * self.table(8)", top="@functools.cache\ndef table(self, n): return torch.linspace(0, 1, n)",
                                         init="type(self).table = table", side="m.table(8)"),
    "a table in a cached property": Effect("return self.linear(x) * self.o.table", "self.o = Own()",
                                           "class Own:\n    @functools.cached_property\n    def table(self): return torch.linspace(0, 1, 8)", side="m.o.table"),
    "a table from the first input": Effect("if self.t is None: self.t = x.mean(0)\nreturn self.linear(x) * self.t", "self.t = None", side="m.t"),
    "a table from the first input in a dict": Effect("if 't' not in self.t: self.t['t'] = x * 2\nreturn self.linear(x) * self.t['t']", "self.t = {}", side="m.t"),
    "the last shape": Effect("self.last_shape = x.shape\nreturn self.linear(x)", "self.last_shape = None", side="tuple(m.last_shape)", fused=True),
    "the last size, read at the next call": Effect("y = x * (2 if self.size == (2, 8) else 1)\nself.size = tuple(x.shape)\nreturn y", "self.size = None", side="m.size"),
    "None": Effect("self.state = None\nreturn self.linear(x)", "self.state = 1", side="m.state"),
    "a constant": Effect("self.state = 'ready'\nreturn self.linear(x)", "self.state = ''", side="m.state", fused=True),
    "a constant set and taken back": Effect("self.state = 1\ny = self.linear(x) * self.state\nself.state = 0\nreturn y", "self.state = 0", side="m.state", fused=True),
    "an input kept and taken back": Effect("self.cond = x * 2\ny = self.linear(x) + self.cond\nself.cond = None\nreturn y", "self.cond = None", side="m.cond", fused=True),
    "an input kept and deleted": Effect("self.cond = x * 2\ny = self.linear(x) + self.cond\ndel self.cond\nreturn y", side="hasattr(m, 'cond')", fused=True),
    "a dict filled and cleared": Effect("self.d['a'] = x * 2\ny = self.linear(x) + self.d['a']\nself.d.clear()\nreturn y", "self.d = {}", side="m.d", fused=True),
    "a bank written, then read": Effect(
        "if self.mode == 'write':\n    self.bank.append(self.linear(x))\n    self.mode = 'read'\n    return x\nself.mode = 'write'\nreturn x + self.bank.pop()",
        "self.mode, self.bank = 'write', []", side="(m.mode, m.bank)"),
}

_STORE = "class Store:\n    def __init__(self): self.maps = []\n    def __call__(self, y):\n        self.maps.append(y)\n        return y"

KEPT = {
    "an attribute of weights": Effect("for p in self.parameters(): p.most = x.abs().max()\nreturn self.linear(x)", side="m.linear.weight.most"),
    "an attribute of tensors in a list": Effect("for t in self.all: t.last = x * 2\nreturn self.linear(x) + self.all[0]", "self.all = [torch.ones(8)]", side="m.all[0].last"),
    "an attribute of tensors in a dict": Effect("for t in self.all.values(): t.used = len(x)\nreturn self.linear(x)", "self.all = {1: torch.ones(8)}", side="vars(m.all[1]).pop('used')"),
    "an attribute of functions in a list": Effect(
        "y = self.linear(x)\nfor f in self.fs: f.last = y\nreturn torch.tanh(y)", "self.fs = [lambda: 0]\nself.fs[0].last = None", side="m.fs[0].last",
    ),
    "features": Effect("y = self.linear(x)\nself.features = y\nreturn torch.tanh(y)", "self.features = None", side="m.features", fused=True),
    "features by a computed name": Effect("y = self.linear(x)\nsetattr(self, f'features{len(x)}', y)\nreturn torch.tanh(y)", side="m.features2"),
    "features in a buffer registered anew": Effect("y = self.linear(x)\nself.register_buffer('features', y)\nreturn torch.tanh(y)", side="m.features"),
    "a global that was one before": Effect("global G\ny = self.linear(x)\nG = y\nreturn torch.tanh(y)", top="G = torch.zeros(2, 8)", side="G"),
    "a global tuple": Effect("global G\ny = self.linear(x)\nG = (y, 1)\nreturn torch.tanh(y)", top="G = None", side="G"),
    "another file's global": Effect("y = self.linear(x)\nother.n = y\nreturn torch.tanh(y)", top="other = types.ModuleType('other')\nother.n = None", side="other.n", fused=True, at_once=True),
    "another file's global that wasn't there": Effect("y = self.linear(x)\nother.n = None\nother.n = tuple(y.shape)\nreturn torch.tanh(y)", top="other = types.ModuleType('other')", side="getattr(other, 'n', 0)", fused=True, at_once=True),
    "another file's global that others set back": Effect("other.n = True\nreturn torch.tanh(self.linear(x))", top="other = types.ModuleType('other')\nother.n = True\ndef taken():\n    other.n, was = False, other.n\n    return was", side="taken()", fused=True, at_once=True),
    "another file's global, of a class of its own": Effect("y = self.linear(x)\nother.n = tuple(y.shape)\nreturn torch.tanh(y)", top="class File(types.ModuleType):\n    model = property(lambda self: 1)\nother = types.ModuleType('other')\nother.__class__ = File", side="getattr(other, 'n', 0)", fused=True, at_once=True),
    "another file's global that is a property": Effect("y = self.linear(x)\nother.n = 1\nreturn torch.tanh(y)", top="class File(types.ModuleType):\n    n = property(lambda self: self.k, lambda self, n: setattr(self, 'k', n + self.k))\nother = File('other')\nother.k = 0", side="other.k"),
    "another file's global that has a setter": Effect("y = self.linear(x)\nother.n = y\nreturn torch.tanh(y)", top="class File(types.ModuleType):\n    def __setattr__(self, name, value):\n        super().__setattr__(name, value * 2)\nother = File('other')\nother.n = torch.zeros(2, 8)", side="other.n"),
    "an attribute of an object that counts what is set": Effect(
        "y = self.linear(x)\nself.box.last = y\nreturn torch.tanh(y)", "self.box = Counts()",
        "class Counts:\n    def __init__(self): vars(self)['set'] = []\n    def __setattr__(self, name, value):\n        self.set.append(name)\n"
        "        object.__setattr__(self, name, value)",
        side="(m.box.set, m.box.last)", fused=True,
    ),
    "a slot that had one": Effect("y = self.linear(x)\nself.box.n = y\nreturn torch.tanh(y)", "self.box = Slots()",
                                  "class Slots:\n    __slots__ = ('n',)\n    def __init__(self): self.n = torch.zeros(2, 8)", side="m.box.n"),
    "a closure's variable": Effect("return self.f(self.linear(x))", "self.f = make()",
                                   "def make():\n    last = None\n    def f(y):\n        nonlocal last\n        last = y\n        return torch.tanh(y)\n    return f",
                                   side="m.f.__closure__[0].cell_contents"),
    "a thread's own": Effect("y = self.linear(x)\nself.own.k = y\nreturn torch.tanh(y)", "self.own = threading.local()\nself.own.k = None", "import threading",
                             side="m.own.k"),
    "a context variable": Effect("y = self.linear(x)\nVAR.set(y)\nreturn torch.tanh(y)", top="import contextvars\nVAR = contextvars.ContextVar('VAR', default=None)", side="VAR.get()"),
    "a set": Effect("self.kept = {self.linear(x)}\nreturn x * 2", "self.kept = set()", side="list(m.kept)"),
    "a function's attribute": Effect("y = self.linear(x)\nkeep.last = y\nreturn torch.tanh(y)", top="def keep(): pass\nkeep.last = None", side="keep.last"),
    "an item that others count": Effect("y = self.linear(x)\nself.kept['y'] = y\nreturn torch.tanh(y) * len(self.kept)", "self.kept = {'y': None}", side="m.kept"),
    "an object made anew": Effect("y = self.linear(x)\nself.box = Box(y)\nreturn torch.tanh(self.box.k)", "self.box = Box(None)", side="m.box.k"),
    "a tuple in a list that is counted": Effect("y = self.linear(x)\nself.kept[0] = (y, 1)\nreturn torch.tanh(y) * len(self.kept)", "self.kept = [(torch.zeros(2, 8), 1)]",
                                                side="list(m.kept)"),
    "an item of a list": Effect("y = self.linear(x)\nself.kept[0] = y\nreturn torch.tanh(y)", "self.kept = [torch.zeros(2, 8)]", side="list(m.kept)"),
    "features that are the result": Effect("self.features = self.linear(x)\nreturn self.features", "self.features = None", side="m.features"),
    "three that nothing reads": Effect("self._a = self.linear(x)\nself._b = self._a * 2\nself._c = x\nreturn torch.tanh(self._b)", side="(m._a, m._b, m._c)", fused=True),
    "a view of another": Effect("y = self.linear(x)\nself.half = y[:, :4]\nreturn torch.tanh(y)", "self.half = None", side="m.half"),
    "one that is changed in place behind": Effect("y = self.linear(x)\nself.kept = y\ny.add_(1)\nreturn y * 2", "self.kept = None", side="m.kept"),
    "a list of features": Effect("self.fs = []\nfor _ in range(3):\n    x = torch.tanh(self.linear(x))\n    self.fs.append(x)\nreturn x", "self.fs = []", side="m.fs"),
    "a tuple": Effect("y = self.linear(x)\nself.kept = (y, y * 2)\nreturn torch.tanh(y)", "self.kept = None", side="m.kept"),
    "a dict of features": Effect("y = self.linear(x)\nself.kept = {'y': y, 'n': 3}\nreturn torch.tanh(y)", "self.kept = None", side="m.kept"),
    "a dict's entry": Effect("y = self.linear(x)\nself.kept['y'] = y\nreturn torch.tanh(y)", "self.kept = {}", side="m.kept"),
    "an object's attribute": Effect("y = self.linear(x)\nself.box.k = y\nreturn torch.tanh(y)", "self.box = Box(None)", side="m.box.k"),
    "a global's attribute": Effect("y = self.linear(x)\nG.k = y\nreturn torch.tanh(y)", top="G = Box(None)", side="G.k"),
    "a global": Effect("global G\ny = self.linear(x)\nG = y\nreturn torch.tanh(y)", top="G = None", side="G", fused=True),
    "a global's size": Effect("global G\ny = self.linear(x)\nG = y.shape[-2:]\nreturn torch.tanh(y)", top="G = None", side="G", fused=True),
    "a global that others set back": Effect("global G\nG = True\nreturn torch.tanh(self.linear(x))", top="G = True\ndef taken():\n    global G\n    G, was = False, G\n    return was",
                                            side="taken()", fused=True),
    "a global that is deleted": Effect("global G\nG = self.linear(x)\ndel G\nreturn torch.tanh(x)", top="G = None", side="globals().get('G')"),
    "a class's attribute": Effect("y = self.linear(x)\ntype(self).last = y\nreturn torch.tanh(y)", side="type(m).last"),
    "a variable of a closure": Effect("return self.keep(self.linear(x))", "self.keep, self.kept = make()",
                                      "def make():\n    last = None\n    def keep(y):\n        nonlocal last\n        last = y\n        return torch.tanh(y)\n    return keep, lambda: last", side="m.kept()"),
    "a slot": Effect("y = self.linear(x)\nself.box.k = y\nreturn torch.tanh(y)", "self.box = Slotted()", "class Slotted:\n    __slots__ = ('k',)\n    def __init__(self): self.k = None", side="m.box.k"),
    "an attribute that others set back": Effect("self.ran = True\nreturn torch.tanh(self.linear(x))", "self.ran = True", "def taken(m):\n    m.ran, was = False, m.ran\n    return was", side="taken(m)"),
    "maps appended to a list": Effect("y = self.linear(x)\nself.maps.append(y)\nreturn torch.tanh(y)", "self.maps = []", side="list(m.maps)"),
    "maps appended to a dict of lists": Effect("y = self.linear(x)\nself.maps.setdefault('down', []).append(y)\nreturn torch.tanh(y)", "self.maps = {}", side="list(m.maps['down'])"),
    "maps appended to a defaultdict": Effect("y = self.linear(x)\nself.maps['down'].append(y)\nreturn torch.tanh(y)", "self.maps = collections.defaultdict(list)",
                                            side="list(m.maps['down'])"),
    "maps appended to a deque": Effect("y = self.linear(x)\nself.maps.append(y)\nreturn torch.tanh(y)", "self.maps = collections.deque(maxlen=3)", side="list(m.maps)"),
    "maps appended by +=": Effect("y = self.linear(x)\nself.maps += [y]\nreturn torch.tanh(y)", "self.maps = []", side="list(m.maps)"),
    "maps extended": Effect("y = self.linear(x)\nself.maps.extend([y, x])\nreturn torch.tanh(y)", "self.maps = []", side="list(m.maps)"),
    "maps inserted": Effect("y = self.linear(x)\nself.maps.insert(0, y)\nreturn torch.tanh(y)", "self.maps = []", side="list(m.maps)"),
    "maps by step": Effect("y = self.linear(x)\nself.maps[len(self.maps)] = y\nreturn torch.tanh(y)", "self.maps = {}", side="dict(m.maps)"),
    "maps by a counter": Effect("y = self.linear(x)\nself.n += 1\nself.maps[self.n] = y\nreturn torch.tanh(y)", "self.maps, self.n = {}, 0", side="dict(m.maps)"),
    "maps in an object": Effect("return torch.tanh(self.store(self.linear(x)))", "self.store = Store()", _STORE, side="list(m.store.maps)"),
    "maps in a global object": Effect("return torch.tanh(G(self.linear(x)))", top=_STORE + "\nG = Store()", side="list(G.maps)"),
    "maps in a global list": Effect("y = self.linear(x)\nG.append(y)\nreturn torch.tanh(y)", top="G = []", side="list(G)"),
    "maps in a closure's list": Effect("return self.f(self.linear(x))", "self.f = make()",
                                       "def make():\n    maps = []\n    def f(y):\n        maps.append(y)\n        return torch.tanh(y)\n    f.maps = maps\n    return f", side="list(m.f.maps)"),
    "a hook that keeps": Effect("return torch.tanh(self.linear(x))", "self.kept = []\nself.linear.register_forward_hook(lambda module, args, y: self.kept.append(y))",
                                side="list(m.kept)"),
    "a hook that keeps the last": Effect("return torch.tanh(self.linear(x))", "self.kept = {}\nself.linear.register_forward_hook(lambda module, args, y: self.kept.update(y=y))",
                                         side="m.kept"),
    "a number of the values": Effect("self.norm = float(x.norm())\nreturn self.linear(x)", "self.norm = 0.0", side="m.norm"),
    "values as a list": Effect("self.seen = x.tolist()\nreturn self.linear(x)", "self.seen = None", side="m.seen"),
    "values as numpy": Effect("self.seen = x.numpy().copy()\nreturn self.linear(x)", "self.seen = None", side="m.seen.tolist()"),
    "values printed": Effect("SEEN.write(f'{x.sum():.3f};')\nreturn self.linear(x)", top="import io\nSEEN = io.StringIO()", side="SEEN.getvalue()"),
    "values logged": Effect("log.warning('sum %.3f', x.sum())\nreturn self.linear(x)",
                            top="import io, logging\nSEEN = io.StringIO()\nlog = logging.Logger('values')\nlog.addHandler(logging.StreamHandler(SEEN))", side="SEEN.getvalue()"),
    "a line written": Effect("SEEN.write('a call;')\nreturn self.linear(x)", top="import io\nSEEN = io.StringIO()", side="SEEN.getvalue()"),
    "a deep copy": Effect("self.kept = copy.deepcopy(self.linear(x))\nreturn torch.tanh(x)", "self.kept = None", "import copy", side="m.kept"),
    "a new module": Effect("self.last = nn.Identity()\nself.last.k = x * 2\nreturn self.linear(x)", "self.last = None", side="m.last.k"),
    "a new parameter": Effect("self.p = nn.Parameter(x.mean(0), requires_grad=False)\nreturn self.linear(x)", "self.p = None", side="m.p"),
    "an object in the place of one that reads the same": Effect(
        "y = self.linear(x) * self.o.k\no = Box(1.0)\no.last = y\nself.o = o\nreturn torch.tanh(y)", "self.o = Box(1.0)\nself.o.last = None", side="m.o.last"),
    "an object in the place of an equal one": Effect("y = self.linear(x) * self.o.k\nself.o = Box(1.0)\nself.o.n = 0\nreturn y", "self.o = Box(1.0)\nself.o.n = 1", side="m.o.n"),
    "a dict in the place of an equal one": Effect("y = self.linear(x) * self.o['k']\nself.o = {'k': 1.0, 'n': 0}\nreturn y", "self.o = {'k': 1.0, 'n': 1}", side="m.o['n']"),
    "a dict in the place of one that reads the same": Effect(
        "y = self.linear(x) * self.o['k']\nself.o = {'k': 1.0, 'last': y}\nreturn torch.tanh(y)", "self.o = {'k': 1.0, 'last': None}", side="m.o['last']"),
    "a callback": Effect("y = self.linear(x)\nself.callback(y)\nreturn torch.tanh(y)", "self.seen = []\nself.callback = self.seen.append", side="list(m.seen)"),
}

STATISTICS = {
    "a BatchNorm": Effect("return self.norm(x)", "self.norm = nn.BatchNorm1d(8)", side="m.norm.state_dict()", train=True),
    "a BatchNorm that counts nothing": Effect("return self.norm(x)", "self.norm = nn.BatchNorm1d(8)\nself.norm.num_batches_tracked = None", train=True, side="m.norm.running_mean"),
    "a BatchNorm with an average over all": Effect("return self.norm(x)", "self.norm = nn.BatchNorm1d(8, momentum=None)", side="m.norm.state_dict()", train=True),
    "a BatchNorm without statistics": Effect("return self.norm(x)", "self.norm = nn.BatchNorm1d(8, track_running_stats=False)", train=True),
    "a BatchNorm that doesn't train": Effect("return self.norm(x)", "self.norm = nn.BatchNorm1d(8)", side="m.norm.state_dict()"),
    "a BatchNorm of a frozen kind": Effect("return F.batch_norm(x, self.mean, self.var, training=True)", "self.register_buffer('mean', torch.zeros(8))\n"
                                           "self.register_buffer('var', torch.ones(8))", side="(m.mean, m.var)"),
    "an InstanceNorm": Effect("return self.norm(x[None])[0]", "self.norm = nn.InstanceNorm1d(2, track_running_stats=True)", side="m.norm.state_dict()", train=True),
    "an InstanceNorm that counts nothing": Effect("return self.norm(x[None])[0]", "self.norm = nn.InstanceNorm1d(2, track_running_stats=True)\nself.norm.num_batches_tracked = None",
                                                  side="m.norm.running_mean", train=True),
    "spectral_norm": Effect("return self.linear(x)", "parametrizations.spectral_norm(self.linear)", "from torch.nn.utils import parametrizations",
                            side="dict(m.linear.named_buffers())", train=True),
    "an old spectral_norm": Effect("return self.linear(x)", "nn.utils.spectral_norm(self.linear)", side="dict(m.linear.named_buffers())", train=True),
    "an average by copy_": Effect("self.ema.copy_(self.ema * 0.9 + x.mean(0) * 0.1)\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an average by lerp_": Effect("self.ema.lerp_(x.mean(0), 0.1)\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an average by mul_ and add_": Effect("self.ema.mul_(0.9).add_(x.mean(0), alpha=0.1)\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an average by +=": Effect("self.ema += x.mean(0)\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an average by an index": Effect("self.ema[:4] = x.mean(0)[:4]\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an average by a view": Effect("self.ema.view(2, 4)[0].add_(x.mean(0)[:4])\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an average by .data": Effect("self.ema.data = self.ema * 0.9 + x.mean(0)\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an average by .data.copy_": Effect("self.ema.data.copy_(x.mean(0))\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an average by out=": Effect("torch.add(self.ema, x.mean(0), out=self.ema)\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an average by register_buffer": Effect("self.register_buffer('ema', self.ema * 0.9 + x.mean(0))\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))",
                                            side="m.ema"),
    "an average by _buffers": Effect("self._buffers['ema'] = self.ema * 0.9 + x.mean(0)\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an average by foreach": Effect("torch._foreach_add_([self.ema], [x.mean(0)])\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an average by numpy": Effect("self.ema.numpy()[...] += 1\nreturn x + self.ema", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an average of a plain tensor": Effect("self.ema.mul_(0.9).add_(x.mean(0))\nreturn x + self.ema", "self.ema = torch.zeros(8)", side="m.ema"),
    "an average of a tensor in an object": Effect("self.box.k.mul_(0.9).add_(x.mean(0))\nreturn x + self.box.k", "self.box = Box(torch.zeros(8))", side="m.box.k"),
    "an average of a weight": Effect("self.linear.weight.mul_(0.9)\nreturn self.linear(x)", side="m.linear.weight"),
    "an average that only others read": Effect("self.ema.lerp_(x.mean(0), 0.1)\nreturn self.linear(x)", "self.register_buffer('ema', torch.zeros(8))", side="m.ema"),
    "an Embedding's max_norm": Effect("return x + self.e(torch.arange(2))", "self.e = nn.Embedding(4, 8, max_norm=0.5)", side="m.e.weight"),
    "a largest value": Effect("self.amax = max(self.amax, float(x.abs().max()))\nreturn x / self.amax", "self.amax = 1e-3", side="m.amax"),
    "a cache of keys": Effect("self.k[self.n] = x.mean(0)\nself.n += 1\nreturn x + self.k[:self.n].sum(0)", "self.register_buffer('k', torch.zeros(16, 8))\nself.n = 0",
                              side="(m.k, m.n)"),
    "a cache of keys that grows": Effect("self.k = torch.cat([self.k, x])\nreturn x + self.k.sum(0)", "self.register_buffer('k', torch.zeros(0, 8))", side="m.k"),
    "requires_grad turned on": Effect("self.linear.weight.requires_grad_(True)\nreturn self.linear(x)", side="m.linear.weight.requires_grad"),
    "training turned off": Effect("y = x * 2 if self.training else x\nself.train(False)\nreturn y", side="m.training", train=True),
    "a child put in": Effect("if not hasattr(self, 'extra'): self.extra = nn.Tanh()\nreturn self.extra(self.linear(x))", side="hasattr(m, 'extra')"),
    "a child taken out": Effect("if hasattr(self, 'extra'): del self.extra\nreturn self.linear(x)", "self.extra = nn.Tanh()", side="hasattr(m, 'extra')"),
    "a class that is changed": Effect("self.o.__class__ = Crate if type(self.o) is Box else Box\nreturn self.o.times(x)", "self.o = Box()", side="type(m.o).__name__"),
    "a grad mode left on": Effect("y = x * (2 if torch.is_grad_enabled() else 1)\ntorch.set_grad_enabled(not torch.is_grad_enabled())\nreturn y", side="torch.is_grad_enabled()"),
}

ARGUMENTS = {
    "a list that was passed, appended to": Effect("y = self.linear(x)\nl.append(y)\nreturn torch.tanh(y)", arguments=True),
    "a list that was passed, with a number": Effect("l.append(3)\nreturn self.linear(x)", arguments=True),
    "a list that was passed, its tensor replaced": Effect("l[0] = l[0] * 2\nreturn self.linear(x)", arguments=True),
    "a dict that was passed, written to": Effect("y = self.linear(x)\nd['y'] = y\nreturn torch.tanh(y)", arguments=True),
    "a dict that was passed, popped from": Effect("return self.linear(x) * d.pop('scale', 1.0)", arguments=True),
    "a dict that was passed, emptied": Effect("y = self.linear(x) * d['scale']\nd.clear()\nreturn y", arguments=True),
    "a list that was passed, popped from": Effect("return self.linear(x) + l.pop()", arguments=True),
    "a list that is passed again": Effect("y = self.linear(x)\nl.append(y)\nreturn torch.tanh(y) * len(l)", arguments=True, kept=True),
    "a dict that is passed again": Effect("d['n'] = d.get('n', 0) + 1\nreturn self.linear(x) * d['n']", arguments=True, kept=True),
    "a dict that is passed again and only others read": Effect("d['n'] = d.get('n', 0) + 1\nreturn self.linear(x)", arguments=True, kept=True),
    "a step in a dict that is passed again": Effect("d.setdefault('steps', []).append(len(l))\nreturn self.linear(x) * (1 + len(d['steps']))", arguments=True, kept=True),
    "an input in place": Effect("y = self.linear(x)\nx.add_(1)\nreturn y", side="None"),
    "an input's part in place": Effect("x[0] = 0\nreturn self.linear(x)"),
    "an input's view in place": Effect("x.view(-1)[:4].mul_(2)\nreturn self.linear(x)"),
    "a tensor of a list in place": Effect("l[0].mul_(2)\nreturn self.linear(x) + l[0]", arguments=True),
    "the input itself": Effect("return x"),
    "a view of the input": Effect("return x[:, :4]"),
    "the input and what was computed": Effect("return x, self.linear(x)"),
    "a weight": Effect("return self.linear(x), self.linear.weight"),
    "the same twice": Effect("y = self.linear(x)\nreturn y, y"),
    "views of one": Effect("y = self.linear(x)\nreturn y[0], y[1]"),
    "an iterator as the result's number": Effect("self.n += 1\nreturn self.linear(x), self.n", "self.n = 0", side="m.n"),
    "a list of its own as the result": Effect("self.out.append(self.linear(x))\nreturn self.out[-1:]", "self.out = []", side="list(m.out)"),
    "the same list each time": Effect("self.out[0] = self.linear(x)\nreturn self.out", "self.out = [None]", side="list(m.out)"),
}

EFFECTS: dict[str, Effect] = {
    f"{family}: {name}": effect
    for family, effects in {
        "a counter in": COUNTERS,
        "what gives another each time": ITERATORS,
        "kept for the next call": CACHES,
        "kept for others": KEPT,
        "statistics": STATISTICS,
        "arguments and results": ARGUMENTS,
    }.items()
    for name, effect in effects.items()
}
