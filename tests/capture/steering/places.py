"""Where something that steers a forward can lie: how a forward reads it there, and how others put something else there.

All of it is source text, for :mod:`.worlds` to make a file of. ``$V`` stands for the value as an expression; ``self`` is the module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Place:
    """One kind of place.

    Attributes:
        name: in words.
        read: the expression by which the forward gets what is there.
        put: the statement by which others put a value there.
        top: what the file has in front of the class.
        body: what the class has.
        init: what ``__init__`` does to put the first value there; None: ``put``.
        base: the class that the module is derived from.
        holds: what it can hold: ``"anything"``, ``"numbers"``, ``"counts"`` (small non-negative integers) or ``"strings"``.
        parameters: of the forward, behind ``x``.
        local: whether only the forward itself can read it.
        enclosed: whether the class is made by a function, whose ``held`` it closes over.
        is_root: whether the module itself is compiled, and not one that has it as a child.
        copies: whether it keeps what it is given in another form, or for the twin too, so that nothing is to be changed inside of it.
        binds: whether a function there turns into a method.
        refusable: whether a forward that reads it may run as it was for ever.
        delete: the statement that takes the value away; none: there is no such thing.
    """

    name: str
    read: str
    put: str
    top: str = ""
    body: str = ""
    init: str | None = None
    base: str = "nn.Module"
    holds: str = "anything"
    parameters: str = ""
    local: bool = False
    enclosed: bool = False
    is_root: bool = False
    copies: bool = False
    binds: bool = False
    refusable: bool = False
    delete: str = ""


def _attribute(what: str, name: str, base: str = "nn.Module", is_root: bool = False) -> Place:
    at = f"self.{name}"
    return Place(f"{what} of {'the root' if is_root else f'a child that is a {base}'}", at, f"{at} = $V", base=base, is_root=is_root, delete=f"del {at}")


_NAMES = {"a public attribute": "scale", "a private attribute": "_scale", "a mangled attribute": "__scale", "a dunder attribute": "__scale__"}
_LEAVES = ("nn.Linear", "nn.Conv2d", "nn.GroupNorm", "nn.LayerNorm", "nn.Embedding")

ATTRIBUTES = [
    *(_attribute(what, name, is_root=is_root) for what, name in _NAMES.items() for is_root in (False, True)),
    *(_attribute(what, name, base) for base in _LEAVES for what, name in list(_NAMES.items())[:2]),
    Place("vars(self)", 'vars(self)["scale"]', "self.__dict__['scale'] = $V"),
    Place("self.__dict__", 'self.__dict__["_scale"]', "self.__dict__['_scale'] = $V"),
    Place("self.__dict__.get", 'self.__dict__.get("scale")', "self.__dict__['scale'] = $V", delete="del self.__dict__['scale']"),
    Place("getattr of a constant name", 'getattr(self, "scale")', "self.scale = $V"),
    Place("getattr of a computed name", 'getattr(self, "sca" + self.suffix)', "self.scale = $V", init='self.suffix = "le"; self.scale = $V'),
    Place("the name for getattr", "getattr(self, self.which)", "self.second = $V; self.which = 'second'", init="self.first = $V; self.which = 'first'"),
    Place("operator.attrgetter", 'operator.attrgetter("scale")(self)', "self.scale = $V"),
    Place("operator.attrgetter of a file", "GET(self)", "self.cfg.k = $V", top='GET = operator.attrgetter("cfg.k")', init="self.cfg = Box($V)"),
    Place("object.__getattribute__", 'object.__getattribute__(self, "scale")', "self.__dict__['scale'] = $V"),
    Place("a child's attribute", "self.linear.scale", "self.linear.scale = $V"),
    Place("a grandchild's attribute", "self.inner[0].scale", "self.inner[0].scale = $V", init="self.inner = nn.Sequential(nn.Identity()); self.inner[0].scale = $V"),
    Place("an attribute of a child that isn't called", "self.store._k", "self.store._k = $V", init="self.store = nn.Module(); self.store._k = $V"),
    Place("get_submodule", 'self.get_submodule("linear")._k', "self.linear._k = $V"),
    Place("the first of modules() that has it", 'next(m._k for m in self.modules() if hasattr(m, "_k"))', "self.linear._k = $V"),
    Place("the first of children()", "next(self.children())._k", "self.linear._k = $V"),
    Place("a dict from names to modules", 'dict(self.named_modules())["linear"]._k', "self.linear._k = $V"),
    Place("a module outside the tree, in a list", "self.others[0]._k", "self.others[0]._k = $V", init="self.others = [nn.Identity()]; self.others[0]._k = $V"),
]

CLASSES = [
    Place("a property over a private attribute", "self.scale", "self.scale = $V", body="""
@property
def scale(self): return self._scale
@scale.setter
def scale(self, value): self._scale = value"""),
    Place("a property without a setter", "self.scale", "self._cfg.k = $V", init="self._cfg = Box($V)", body="""
@property
def scale(self): return self._cfg.k"""),
    Place("a property that is replaced", "self.scale", "held = $V; type(self).scale = property(lambda self: held)", body="scale = None"),
    Place("a cached property", "self.scale", "self.__dict__['scale'] = $V", body="""
@functools.cached_property
def scale(self): return None"""),
    Place("a cached property's source", "self.scale", "self.source = $V; self.__dict__.pop('scale', None)", body="""
@functools.cached_property
def scale(self): return self.source"""),
    Place("a descriptor that keeps it in the module", "self.scale", "Model.__dict__['scale'].__set__(self, $V)", body="scale = InModule()", top="""
class InModule:
    def __get__(self, obj, cls=None): return obj.__dict__["_kept"]
    def __set__(self, obj, value): obj.__dict__["_kept"] = value"""),
    Place("a descriptor that keeps it itself", "self.scale", "Model.__dict__['scale'].__set__(self, $V)", body="scale = InItself()", top="""
class InItself:
    def __get__(self, obj, cls=None): return self.kept
    def __set__(self, obj, value): self.kept = value"""),
    Place("a descriptor with a table", "self.scale", "Model.__dict__['scale'].__set__(self, $V)", body="scale = InTable()", refusable=True, top="""
class InTable:
    def __init__(self): self.table = weakref.WeakKeyDictionary()
    def __get__(self, obj, cls=None): return self.table[obj]
    def __set__(self, obj, value): self.table[obj] = value"""),
    Place("a __getattr__ of its own", "self.scale", "self._extra['scale'] = $V", init="self._extra = {'scale': $V}", body="""
def __getattr__(self, name):
    extra = self.__dict__.get("_extra", {})
    return extra[name] if name in extra else super().__getattr__(name)"""),
    Place("a __getattribute__ of its own", "self.scale", "self.__dict__['_scale'] = $V", body="""
def __getattribute__(self, name):
    return super().__getattribute__("_scale" if name == "scale" else name)"""),
    Place("a class's attribute", "self.K", "Model.K = $V", binds=True, body="K = $V", init="pass"),
    Place("a class's private attribute", "self._K", "Model._K = $V", binds=True, body="_K = $V", init="pass"),
    Place("a class's attribute by type(self)", "type(self).K", "Model.K = $V", binds=True, body="K = $V", init="pass"),
    Place("a class's attribute by __class__", "self.__class__.K", "Model.K = $V", binds=True, body="K = $V", init="pass"),
    Place("a class's attribute by its name", "Model.K", "Model.K = $V", binds=True, body="K = $V", init="pass"),
    Place("a mixin's attribute", "self.K", "Mixin.K = $V", binds=True, top="class Mixin:\n    K = $V", base="Mixin, nn.Module", init="pass"),
    Place("a class's attribute over its base's", "self.K", "Model.K = $V", binds=True, top="class Mixin:\n    K = None", body="K = $V", base="Mixin, nn.Module", init="pass",
          delete="del Model.K"),
    Place("a base's attribute by super()", "super().K", "Mixin.K = $V", binds=True, top="class Mixin:\n    K = $V", base="Mixin, nn.Module", init="pass", local=True),
    Place("a metaclass's attribute", "type(self).K", "Meta.K = $V", binds=True, top="class Meta(type):\n    K = $V", base="nn.Module, metaclass=Meta", init="pass"),
    Place("a class's default overridden in the instance", "self.K", "self.__dict__['K'] = $V", binds=True, body="K = $V", init="pass"),
    Place("an instance's value over the class's default", "self.K", "self.__dict__['K'] = $V", body="K = None", delete="del self.__dict__['K']"),
    Place("a class's dict", "self.TABLE['k']", "Model.TABLE['k'] = $V", body="TABLE = {'k': $V}", init="pass"),
    Place("a class's list", "self._list[0]", "Model._list[0] = $V", body="_list = [$V]", init="pass"),
    Place("a nested class's attribute", "self.Settings.k", "Model.Settings.k = $V", body="class Settings:\n    k = $V", init="pass"),
    Place("a classmethod", "self.get()", "Model._k = $V", binds=True, body="_k = $V\n@classmethod\ndef get(cls): return cls._k", init="pass"),
    Place("a staticmethod that is replaced", "self.get()", "held = $V; Model.get = staticmethod(lambda: held)", body="get = None"),
    Place("a method that is replaced on the class", "self.get()", "held = $V; Model.get = lambda self: held", body="get = None"),
    Place("a method that is replaced on the instance", "self.get()", "held = $V; self.get = lambda: held"),
    Place("a method's default", "self.get()", "Model.get.__defaults__ = ($V,)", body="def get(self, k=$V): return k", init="pass"),
    Place("a slot of a module's class", "self.scale", "self.scale = $V", body="__slots__ = ('scale',)", delete="del self.scale"),
    Place("a generator method", "list(self.values())[0]", "self._k = $V", body="def values(self):\n    yield self._k"),
    Place("a helper class that is a registry", "Registry._active", "Registry._active = $V", top="class Registry:\n    _active = $V", init="pass"),
    Place("a helper class's classmethod", "Registry.get()", "Registry._kept['k'] = $V", init="pass",
          top="class Registry:\n    _kept = {'k': $V}\n    @classmethod\n    def get(cls): return cls._kept['k']"),
]

_SLOTS = "class Slots:\n    __slots__ = ('k',)\n    def __init__(self, k): self.k = k"

OBJECTS = [
    Place("an object's attribute", "self.cfg.k", "self.cfg.k = $V", init="self.cfg = Box($V)", delete="del self.cfg.k"),
    Place("an object's private attribute", "self._cfg._k", "self._cfg._k = $V", init="self._cfg = Box(); self._cfg._k = $V"),
    Place("an object that is replaced", "self.cfg.k", "self.cfg = Box($V)"),
    Place("an object in an object", "self.cfg.k.k", "self.cfg.k.k = $V", init="self.cfg = Box(Box($V))"),
    Place("an object in an object in an object", "self.a.k.k.k", "self.a.k.k.k = $V", init="self.a = Box(Box(Box($V)))"),
    Place("the middle one of nested objects", "self.a.k.k", "self.a.k = Box($V)", init="self.a = Box(Box($V))"),
    Place("a slot of an object", "self.cfg.k", "self.cfg.k = $V", init="self.cfg = Slots($V)", top=_SLOTS, delete="del self.cfg.k"),
    Place("a slot of an object that can be referred to weakly", "self.cfg.k", "self.cfg.k = $V", init="self.cfg = Slots($V)",
          top=_SLOTS.replace("('k',)", "('k', '__weakref__')")),
    Place("an inherited slot", "self.cfg.k", "self.cfg.k = $V", init="self.cfg = More($V)", top=f"{_SLOTS}\nclass More(Slots):\n    __slots__ = ()"),
    Place("a namespace", "self.cfg.k", "self.cfg.k = $V", init="self.cfg = types.SimpleNamespace(k=$V)", delete="del self.cfg.k"),
    Place("a dataclass", "self.cfg.k", "self.cfg.k = $V", init="self.cfg = Data($V)", top="@dataclasses.dataclass\nclass Data:\n    k: object"),
    Place("a frozen dataclass", "self.cfg.k", "self.cfg = dataclasses.replace(self.cfg, k=$V)", init="self.cfg = Data($V)",
          top="@dataclasses.dataclass(frozen=True)\nclass Data:\n    k: object"),
    Place("a dataclass with slots", "self.cfg.k", "self.cfg.k = $V", init="self.cfg = Data($V)", top="@dataclasses.dataclass(slots=True)\nclass Data:\n    k: object"),
    Place("a dataclass that equals all others", "self.cfg.k", "self.cfg = Data($V)",
          top="@dataclasses.dataclass\nclass Data:\n    k: object = dataclasses.field(compare=False)"),
    Place("a namedtuple", "self.cfg.k", "self.cfg = Named($V)", top='Named = collections.namedtuple("Named", "k")'),
    Place("an object with a __getattr__", "self.cfg.k", "self.cfg.kept['k'] = $V", init="self.cfg = Config({'k': $V})",
          top="class Config:\n    def __init__(self, kept): self.kept = kept\n    def __getattr__(self, name): return self.__dict__['kept'][name]"),
    Place("an object's property", "self.cfg.scale", "self.cfg._k = $V", init="self.cfg = Config(); self.cfg._k = $V",
          top="class Config:\n    @property\n    def scale(self): return self._k"),
    Place("a processor's attribute", "self.processor(self)", "self.processor.k = $V", init="self.processor = Processor(); self.processor.k = $V",
          top="class Processor:\n    def __call__(self, module): return self.k"),
    Place("a processor's class", "self.processor(self)", "Processor.k = $V", binds=True, init="self.processor = Processor()",
          top="class Processor:\n    k = $V\n    def __call__(self, module): return self.k"),
    Place("a processor's __call__", "self.processor(self)", "held = $V; Processor.__call__ = lambda self, module: held",
          init="held = $V; Processor.__call__ = lambda self, module: held; self.processor = Processor()", top="class Processor: pass"),
    Place("a bound method of another object", "self.get()", "self.get.__self__.k = $V", init="self.get = Holder($V).read",
          top="class Holder:\n    def __init__(self, k): self.k = k\n    def read(self): return self.k"),
    Place("an object's __getitem__", "self.o[0]", "self.o.k = $V", init="self.o = Own($V)", top="class Own(Box):\n    def __getitem__(self, i): return self.k"),
    Place("an object's __iter__", "list(self.o)[0]", "self.o.k = $V", init="self.o = Own($V)", top="class Own(Box):\n    def __iter__(self): return iter([self.k])"),
    Place("an object's __enter__", "entered(self.o)", "self.o.k = $V", init="self.o = Own($V)",
          top="class Own(Box):\n    def __enter__(self): return self.k\n    def __exit__(self, *a): pass\ndef entered(o):\n    with o as k:\n        return k"),
    Place("an object's __eq__", "1.0 if self.o == 1 else 2.0", "self.o.k = $V", init="self.o = Own($V)", holds="numbers", copies=True,
          top="class Own(Box):\n    def __eq__(self, other): return self.k == 1.0"),
    Place("an object's __bool__", "1.0 if self.o else 2.0", "self.o.k = $V", init="self.o = Own($V)", holds="numbers", copies=True,
          top="class Own(Box):\n    def __bool__(self): return self.k == 1.0"),
    Place("an object's __len__", "len(self.o)", "self.o.k = $V", init="self.o = Own($V)", holds="counts", copies=True,
          top="class Own(Box):\n    def __len__(self): return self.k"),
    Place("an object's __float__", "float(self.o)", "self.o.k = $V", init="self.o = Own($V)", holds="numbers", copies=True,
          top="class Own(Box):\n    def __float__(self): return float(self.k)"),
    Place("an object's __contains__", "1.0 if 'a' in self.o else 2.0", "self.o.k = $V", init="self.o = Own($V)", holds="numbers", copies=True,
          top="class Own(Box):\n    def __contains__(self, key): return self.k == 1.0"),
    Place("an object's __index__", "range(9)[self.o]", "self.o.k = $V", init="self.o = Own($V)", holds="counts", copies=True,
          top="class Own(Box):\n    def __index__(self): return int(self.k)"),
]


def _container(name: str, made: str, at: str = "['k']", holds: str = "anything", copies: bool = False, refusable: bool = False, delete: bool = True) -> Place:
    where = f"self.box{at}"
    return Place(name, where, f"{where} = $V", init=f"self.box = {made}", holds=holds, copies=copies, refusable=refusable, delete=f"del {where}" if delete else "")


CONTAINERS = [
    _container("a dict", "{'k': $V}"),
    _container("an OrderedDict", "collections.OrderedDict(k=$V)"),
    _container("a defaultdict", "collections.defaultdict(float, k=$V)"),
    _container("a Counter", "collections.Counter(k=$V)", holds="numbers", copies=True),
    _container("a ChainMap", "collections.ChainMap({}, {'k': $V})", delete=False),
    _container("a UserDict", "collections.UserDict(k=$V)"),
    _container("a dict of a class of its own", "Own(k=$V)"),
    _container("a dict keyed by an object", "{KEY: $V}", "[KEY]"),
    _container("a list", "[$V]", "[0]", delete=False),
    _container("a list's end", "[0, $V]", "[-1]", delete=False),
    _container("a list of a class of its own", "OwnList([$V])", "[0]", delete=False),
    _container("a list in a tuple", "([$V],)", "[0][0]", delete=False),
    _container("a list in a dict in a list", "[{'k': [$V]}]", "[0]['k'][0]", delete=False),
    _container("a dict in a dict in a dict", "{'a': {'b': {'c': $V}}}", "['a']['b']['c']"),
    _container("a deque", "collections.deque([$V])", "[0]", delete=False),
    _container("a UserList", "collections.UserList([$V])", "[0]", delete=False),
    _container("an array", "array.array('d', [$V])", "[0]", holds="numbers", copies=True, delete=False),
    _container("a bytearray", "bytearray([$V])", "[0]", holds="counts", copies=True, delete=False),
    _container("a numpy array", "np.array([$V, 2.0])", "[0]", holds="numbers", copies=True, delete=False),
    _container("a memoryview", "memoryview(array.array('d', [$V]))", "[0]", holds="numbers", copies=True, refusable=True, delete=False),
]
CONTAINERS = [replace(place, top="class Own(dict): pass\nclass OwnList(list): pass\nKEY = object()") for place in CONTAINERS] + [
    Place("an object in a list in a dict in an object", "self.a.k['x'][1].k", "self.a.k['x'][1].k = $V", init="self.a = Box({'x': [0, Box($V)]})"),
    Place("a dict's values()", "list(self.box.values())[0]", "self.box['k'] = $V", init="self.box = {'k': $V}"),
    Place("a dict's items()", "[v for k, v in self.box.items() if k == 'k'][0]", "self.box['k'] = $V", init="self.box = {'a': 0, 'k': $V}"),
    Place("a dict's get()", "self.box.get('k')", "self.box['k'] = $V", init="self.box = {'k': $V}", delete="del self.box['k']"),
    Place("a dict's setdefault()", "self.box.setdefault('k', None)", "self.box['k'] = $V", init="self.box = {'k': $V}"),
    Place("the first of a list", "next(iter(self.box))", "self.box.insert(0, $V)", init="self.box = [$V]"),
    Place("a list unpacked", "(lambda a, b: b)(*self.box)", "self.box[1] = $V", init="self.box = [0, $V]"),
    Place("a dict unpacked", "(lambda k: k)(**self.box)", "self.box['k'] = $V", init="self.box = {'k': $V}"),
    Place("a list's slice", "self.box[1:][0]", "self.box[1] = $V", init="self.box = [0, $V]"),
    Place("zip", "[b for a, b in zip(self.keys, self.box)][0]", "self.box[0] = $V", init="self.keys = ['k']; self.box = [$V]"),
    Place("map", "list(map(lambda k: self.box[k], self.keys))[0]", "self.box['k'] = $V", init="self.keys = ['k']; self.box = {'k': $V}"),
    Place("operator.itemgetter", "operator.itemgetter('k')(self.box)", "self.box['k'] = $V", init="self.box = {'k': $V}"),
    Place("functools.reduce", "functools.reduce(lambda a, b: b, self.box)", "self.box[1] = $V", init="self.box = [0, $V]"),
    Place("a mapping proxy", "self.view['k']", "self._own['k'] = $V", init="self._own = {'k': $V}; self.view = types.MappingProxyType(self._own)"),
    Place("a tuple", "self.box[0]", "self.box = ($V,)"),
    Place("a tuple in a tuple", "self.box[0][0]", "self.box = (($V,),)"),
    Place("a ModuleDict's module", "self.mods['a'].k", "self.mods['a'].k = $V", init="self.mods = nn.ModuleDict({'a': nn.Identity()}); self.mods['a'].k = $V"),
    Place("a ModuleList's module", "self.mods[0]._k", "self.mods[0]._k = $V", init="self.mods = nn.ModuleList([nn.Identity()]); self.mods[0]._k = $V"),
    Place("a dict of dicts by a key that steers", "self.tables[self.mode]['k']", "self.mode = 'b'; self.tables['b']['k'] = $V",
          init="self.mode = 'a'; self.tables = {'a': {'k': $V}, 'b': {}}"),
]

_OTHER = "other = types.ModuleType('other_of_' + __name__)\nsys.modules[other.__name__] = other\n"

FILES = [
    Place("a global", "G", "global G; G = $V", top="G = $V", init="pass", delete="global G; del G"),
    Place("a global by globals()", 'globals()["G"]', "global G; G = $V", top="G = $V", init="pass"),
    Place("a global by a function", "held()", "global _G; _G = $V", top="_G = $V\ndef held(): return _G", init="pass"),
    Place("a global by a function by a function", "held()", "global _G; _G = $V", top="_G = $V\ndef inner(): return _G\ndef held(): return inner()", init="pass"),
    Place("a global dict's item", "G['k']", "G['k'] = $V", top="G = {'k': $V}", init="pass", delete="del G['k']"),
    Place("a global list's item", "G[0]", "G[0] = $V", top="G = [$V]", init="pass"),
    Place("a global object's attribute", "G.k", "G.k = $V", top="G = Box($V)", init="pass", delete="del G.k"),
    Place("a global object's object", "G.k.k", "G.k.k = $V", top="G = Box(Box($V))", init="pass"),
    Place("a global dict of objects", "G['a'].k", "G['a'].k = $V", top="G = {'a': Box($V)}", init="pass"),
    Place("a registry of functions", "G[self.kind]()", "held = $V; G['a'] = lambda: held", top="held0 = $V\nG = {'a': lambda: held0}", init="self.kind = 'a'"),
    Place("a global function that is replaced", "held()", "global held; kept = $V; held = lambda: kept", top="kept0 = $V\nheld = lambda: kept0", init="pass"),
    Place("a function's attribute", "held.k", "held.k = $V", top="def held(): pass\nheld.k = $V", init="pass"),
    Place("a function's default", "held()", "held.__defaults__ = ($V,)", top="def held(k=$V): return k", init="pass"),
    Place("a function's mutable default", "held()", "held.__defaults__[0][0] = $V", top="def held(k=[$V]): return k[0]", init="pass"),
    Place("a function's keyword default", "held()", "held.__kwdefaults__['k'] = $V", top="def held(*, k=$V): return k", init="pass"),
    Place("a function's closure", "held()", "held.__closure__[0].cell_contents = $V", init="pass",
          top="def make(k):\n    def held(): return k\n    return held\nheld = make($V)"),
    Place("a function's closure's list", "held()", "held.__closure__[0].cell_contents[0] = $V", init="pass",
          top="def make(k):\n    def held(): return k[0]\n    return held\nheld = make([$V])"),
    Place("a closure's function's closure", "held()", "put($V)", init="pass", top="""
def make(k):
    def inner(): return k
    def held(): return inner()
    def put(value):
        nonlocal k
        k = value
    return held, put
held, put = make($V)"""),
    Place("a partial's argument", "held()", "global held; held = functools.partial(same, $V)", top="def same(k): return k\nheld = functools.partial(same, $V)", init="pass"),
    Place("a partial's keyword", "self.held()", "self.held = functools.partial(same, k=$V)", top="def same(k): return k"),
    Place("a partial's mutable argument", "self.held()", "self.held.args[0][0] = $V", init="self.held = functools.partial(first, [$V])", top="def first(k): return k[0]"),
    Place("a partial's keywords changed", "self.held()", "self.held.keywords['k'] = $V", init="self.held = functools.partial(same, k=$V)", top="def same(k): return k"),
    Place("a partial's object", "self.held()", "self.held.args[0].k = $V", init="self.held = functools.partial(of, Box($V))", top="def of(box): return box.k"),
    Place("a partialmethod", "self.get()", "Model.get = functools.partialmethod(Model.own, $V)", body="def own(self, k): return k\nget = functools.partialmethod(own, $V)",
          init="pass"),
    Place("a lambda in a list", "self.fns[0]()", "held = $V; self.fns[0] = lambda: held", init="held = $V; self.fns = [lambda: held]"),
    Place("a decorated function", "held()", "held.__wrapped__.k = $V", init="pass", top="""
def decorated(function):
    @functools.wraps(function)
    def wrapper(*args): return function(*args)
    return wrapper
@decorated
def held(): return held.__wrapped__.k
held.__wrapped__.k = $V"""),
    Place("another file's global", "other.K", "other.K = $V", top=f"{_OTHER}other.K = $V", init="pass", delete="del other.K"),
    Place("another file's dict", "other.K['k']", "other.K['k'] = $V", top=f"{_OTHER}other.K = {{'k': $V}}", init="pass"),
    Place("another file's file's global", "other.deep.K", "other.deep.K = $V", top=f"{_OTHER}other.deep = types.ModuleType('deep')\nother.deep.K = $V", init="pass"),
    Place("another file that is replaced", "other.K", "global other; other = types.ModuleType('another'); other.K = $V", top=f"{_OTHER}other.K = $V", init="pass"),
    Place("another file's function's global", "other.get()", "other.K = $V", init="pass",
          top=f"{_OTHER}other.K = $V\nexec('def get(): return K', other.__dict__)"),
    Place("a name imported from another file", "K", "global K; K = $V", top=f"{_OTHER}other.K = $V\nK = other.K", init="pass"),
    Place("an entry of sys.modules", "sys.modules[NAME].K", "sys.modules[NAME].K = $V", top=f"{_OTHER}other.K = $V\nNAME = other.__name__", init="pass"),
    Place("an import in the forward", "imported().K", "imported().K = $V", init="pass",
          top=f"{_OTHER}other.K = $V\nNAME = other.__name__\ndef imported():\n    import importlib\n    return importlib.import_module(NAME)", refusable=True),
    Place("a builtin of its own", "STEERING", "builtins.STEERING = $V", top="import builtins", copies=True, delete="builtins.__dict__.pop('STEERING', None)"),
    Place("a forward's default", "held", "Model.forward.__defaults__ = ($V,)", parameters=", held=$V", init="pass", local=True),
    Place("a forward's mutable default", "held[0]", "Model.forward.__defaults__[0][0] = $V", parameters=", held=[$V]", init="pass", local=True),
    Place("a forward's keyword default", "held", "Model.forward.__kwdefaults__['held'] = $V", parameters=", *, held=$V", init="pass", local=True),
    Place("what the class closes over", "held", "Model.put($V)", enclosed=True, init="pass"),
    Place("an object that the class closes over", "held.k", "Model.held().k = $V", enclosed=True, init="pass"),
    Place("a context variable", "VAR.get()", "VAR.set($V)", top="VAR = contextvars.ContextVar('steering')", refusable=True),
    Place("a thread's local", "LOCAL.k", "LOCAL.k = $V", top="LOCAL = threading.local()", refusable=True),
    Place("an environment variable", "os.environ.get('FAST_COMPILE_STEERING', '')", "os.environ['FAST_COMPILE_STEERING'] = $V", holds="strings", copies=True, refusable=True),
    Place("os.getenv", "os.getenv('FAST_COMPILE_STEERING')", "os.environ['FAST_COMPILE_STEERING'] = $V", holds="strings", copies=True, refusable=True),
    Place("a weak reference", "self.ref().k", "self.ref().k = $V", init="self.kept = Box($V); self.ref = weakref.ref(self.kept)", refusable=True),
    Place("a weak proxy", "self.proxy.k", "self.kept.k = $V", init="self.kept = Box($V); self.proxy = weakref.proxy(self.kept)", refusable=True),
    Place("a weak dict", "self.table['k'].k", "self.kept.k = $V", init="self.kept = Box($V); self.table = weakref.WeakValueDictionary(k=self.kept)", refusable=True),
    Place("a cached function's cache", "held()", "global _G; _G = $V; held.cache_clear()", top="_G = $V\n@functools.lru_cache\ndef held(): return _G", init="pass", refusable=True),
    Place("the body of a class that is made in the forward", "made(self)", "self.k = $V", top="def made(net):\n    class Made:\n        held = net.k\n    return Made.held"),
    Place("the body of a class in such a body", "made(self)", "self.k = $V", top="def made(net):\n    class Outer:\n        class Inner:\n            held = net.k\n    return Outer.Inner.held"),
    Place("an exception's argument", "raised(self)", "self.k = $V", top="def raised(self):\n    try:\n        raise ValueError(self.k)\n    except ValueError as e:\n        return e.args[0]"),
]

PLACES = [*ATTRIBUTES, *CLASSES, *OBJECTS, *CONTAINERS, *FILES]
