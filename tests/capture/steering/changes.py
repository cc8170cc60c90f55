"""What can become of something that steers a forward, and how a forward is steered by it.

Source text, as in :mod:`.places`: ``$v`` stands for the expression that reads the place, ``y`` is a tensor of 2 x 8.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """One kind of change.

    Attributes:
        name: in words.
        use: what the forward does with what is there.
        first: the expression for what is there at first.
        then: the expression for what is put there; empty: ``do`` instead.
        do: the statement that changes what is there from the inside; ``delete`` takes it away.
        undo: the statement that changes it back; empty where ``then`` is: ``first`` is put there.
        needs: what the place has to hold for it.
        functions: whether it is about Python's functions, which turn into methods where they are a class's.
        same: whether the results stay the same.
        refusable: whether a forward that is steered so may run as it was for ever.
    """

    name: str
    use: str
    first: str
    then: str = ""
    do: str = ""
    undo: str = ""
    needs: str = "anything"
    functions: bool = False
    same: bool = False
    refusable: bool = False


CHANGES = [
    Change("another number", "y = y * $v", "1.0", "2.0", needs="numbers"),
    Change("another number, much alike", "y = y * $v * 1e3", "1.0", "1.0000001", needs="anything"),
    Change("a count", "for _ in range($v): y = y * 2", "1", "2", needs="counts"),
    Change("a flag", "y = y * 2 if $v else y", "False", "True"),
    Change("an int becomes a bool", "y = y * (2 if $v is True else 1)", "1", "True"),
    Change("an int becomes a float", "y = y * (2 if isinstance($v, float) else 1)", "1", "1.0"),
    Change("zero becomes negative", "y = y * math.copysign(1.0, $v)", "0.0", "-0.0"),
    Change("a number becomes none", "y = y * 2 if math.isnan($v) else y", "1.0", "math.nan"),
    Change("None becomes a number", "v = $v\ny = y if v is None else y * v", "None", "2.0"),
    Change("a complex number", "y = y * $v.imag", "1j", "2j"),
    Change("another word", "y = y * (2 if $v == 'b' else 1)", "'a'", "'b'", needs="strings"),
    Change("the same word of another class", "y = y * (1 if type($v) is str else 2)", "'a'", "Word('a')"),
    Change("an equal number of another class", "y = y * (1 if type($v) is float else 2)", "1.0", "Number(1.0)"),
    Change("bytes", "y = y * $v[0]", "b'\\x01'", "b'\\x02'"),
    Change("another torch function", "y = $v(y)", "torch.relu", "torch.neg"),
    Change("another function", "y = $v(y)", "single", "double", functions=True),
    Change("a lambda with other code", "y = $v(y)", "lambda t: t * 1", "lambda t: t * 2", functions=True),
    Change("a lambda with another default", "y = $v(y)", "with_default(1.0)", "with_default(2.0)", functions=True),
    Change("a lambda that closes over another number", "y = $v(y)", "closing_over(1.0)", "closing_over(2.0)", functions=True),
    Change("a function's code", "y = $v(y)", "fresh(single)", do="$v.__code__ = double.__code__", undo="$v.__code__ = single.__code__", functions=True),
    Change("a function's default", "y = $v(y)", "with_default(1.0)", do="$v.__defaults__ = (2.0,)", undo="$v.__defaults__ = (1.0,)", functions=True),
    Change("a partial", "y = $v(y)", "functools.partial(times, k=1.0)", "functools.partial(times, k=2.0)", functions=True),
    Change("a method bound to another", "y = $v(y)", "Box(1.0).times", "Box(2.0).times"),
    Change("a method's object", "y = $v(y)", "Box(1.0).times", do="$v.__self__.k = 2.0", undo="$v.__self__.k = 1.0"),
    Change("a list's item", "y = y * $v[0]", "[1.0, 2.0]", do="$v[0] = 3.0", undo="$v[0] = 1.0"),
    Change("a list grows", "for s in $v: y = y * s", "[1.0, 2.0]", do="$v.append(3.0)", undo="$v.pop()"),
    Change("a list's length", "y = y * len($v)", "[1.0, 2.0]", do="$v.append(3.0)", undo="$v.pop()"),
    Change("a list turned round", "for s in $v: y = y * s + s", "[1.0, 2.0]", do="$v.reverse()", undo="$v.reverse()"),
    Change("an equal list", "for s in $v: y = y * s", "[1.0, 2.0]", "[1.0, 2.0]", same=True),
    Change("a list of functions grows", "for f in $v: y = f(y)", "[torch.relu]", do="$v.append(torch.neg)", undo="$v.pop()"),
    Change("a list of ints becomes one of bools", "y = y * sum(2 for s in $v if s is True) + y", "[1]", "[True]"),
    Change("what is in a list", "y = y * (2 if 3 in $v else 1)", "[1, 2]", do="$v.append(3)", undo="$v.pop()"),
    Change("a list in a list", "y = y * $v[0][0]", "[[1.0]]", do="$v[0][0] = 2.0", undo="$v[0][0] = 1.0"),
    Change("a list becomes a tuple", "y = y * (2 if isinstance($v, tuple) else 1)", "[1.0]", "(1.0,)"),
    Change("a tuple", "y = y * $v[1]", "(1.0, 2.0)", "(1.0, 3.0)"),
    Change("a dict's item", "y = y * $v['a']", "{'a': 1.0}", do="$v['a'] = 2.0", undo="$v['a'] = 1.0"),
    Change("a dict gets a key", "y = y * (2 if 'b' in $v else 1)", "{'a': 1.0}", do="$v['b'] = 1.0", undo="del $v['b']"),
    Change("a dict loses a key", "y = y * $v.get('b', 2.0)", "{'a': 1.0, 'b': 1.0}", do="del $v['b']", undo="$v['b'] = 1.0"),
    Change("a dict's order", "for n, s in $v.items(): y = y * s if n == 'a' else y + s", "{'a': 2.0, 'b': 3.0}", do="$v['a'] = $v.pop('a')",
           undo="$v['b'] = $v.pop('b')"),
    Change("a dict's first key", "y = y * (2 if next(iter($v)) == 'b' else 1)", "{'a': 2.0, 'b': 3.0}", do="$v['a'] = $v.pop('a')", undo="$v['b'] = $v.pop('b')"),
    Change("a list in a dict", "y = y * $v['a'][0]", "{'a': [1.0]}", do="$v['a'][0] = 2.0", undo="$v['a'][0] = 1.0"),
    Change("a dict's function", "y = $v['a'](y)", "{'a': torch.relu}", do="$v['a'] = torch.neg", undo="$v['a'] = torch.relu"),
    Change("a set", "y = y * (2 if 'b' in $v else 1)", "{'a'}", do="$v.add('b')", undo="$v.discard('b')"),
    Change("a frozenset", "y = y * (2 if 'b' in $v else 1)", "frozenset('a')", "frozenset('ab')"),
    Change("a deque", "for s in $v: y = y * s", "collections.deque([1.0, 2.0])", do="$v.append(3.0)", undo="$v.pop()"),
    Change("an object's number", "y = y * $v.k", "Box(1.0)", do="$v.k = 2.0", undo="$v.k = 1.0"),
    Change("an object's list", "y = y * $v.k[0]", "Box([1.0])", do="$v.k[0] = 2.0", undo="$v.k[0] = 1.0"),
    Change("an object's object's number", "y = y * $v.k.k", "Box(Box(1.0))", do="$v.k.k = 2.0", undo="$v.k.k = 1.0"),
    Change("another object", "y = $v.times(y)", "Box(1.0)", "Box(2.0)"),
    Change("an object of another class", "y = $v.times(y)", "Box(1.0)", "Crate(1.0)"),
    Change("an object's class", "y = $v.times(y)", "Box(1.0)", do="$v.__class__ = Crate", undo="$v.__class__ = Box"),
    Change("an object's own method", "y = $v.times(y)", "Box(1.0)", do="$v.times = double", undo="del $v.times"),
    Change("an object gets an attribute", "y = y * (2 if hasattr($v, 'extra') else 1)", "Box(1.0)", do="$v.extra = None", undo="del $v.extra"),
    Change("an object gets an attribute that has a default", "y = y * getattr($v, 'extra', 1.0)", "Box(1.0)", do="$v.extra = 2.0", undo="del $v.extra"),
    Change("an object loses what it shadows with", "y = y * $v.FACTOR", "shadowing(2.0)", do="del $v.FACTOR", undo="$v.FACTOR = 2.0"),
    Change("a class's number", "y = y * $v.FACTOR", "Box", "Crate"),
    Change("an object's isinstance", "y = y * (2 if isinstance($v, Crate) else 1)", "Box(1.0)", "Crate(1.0)"),
    Change("an enum's member", "y = y * $v.value", "Kind.A", "Kind.B"),
    Change("a dtype", "y = y * (2 if $v is torch.float64 else 1)", "torch.float32", "torch.float64"),
    Change("a device", "y = y * (2 if $v.type == 'meta' else 1)", "torch.device('cpu')", "torch.device('meta')"),
    Change("a range", "for _ in $v: y = y * 2", "range(1)", "range(2)"),
    Change("a slice", "y = y[:, $v].repeat(1, 2)", "slice(0, 4)", "slice(4, 8)"),
    Change("a numpy number", "y = y * float($v)", "np.float32(1.0)", "np.float32(2.0)"),
    Change("a numpy array's item", "y = y * float($v[0])", "np.ones(2)", do="$v[0] = 2.0", undo="$v[0] = 1.0"),
    Change("a numpy array's shape", "y = y * $v.shape[0]", "np.ones(2)", "np.ones(3)"),
    Change("another tensor", "y = y * $v", "torch.ones(8)", "torch.full((8,), 2.0)", refusable=True),
    Change("a tensor's values", "y = y * $v", "torch.ones(8)", do="$v.mul_(2)", undo="$v.div_(2)", refusable=True),
    Change("a tensor's shape", "y = y * $v.shape[0]", "torch.ones(1)", "torch.ones(2)", refusable=True),
    Change("a tensor's dtype", "y = y * (2 if $v.dtype == torch.float64 else 1)", "torch.ones(1)", "torch.ones(1, dtype=torch.float64)", refusable=True),
    Change("None becomes a tensor", "v = $v\ny = y if v is None else y + v", "None", "torch.ones(8)"),
    Change("another module", "y = $v(y)", "nn.ReLU()", "nn.Sigmoid()"),
    Change("a size", "y = y * $v[0]", "torch.Size([1, 2])", "torch.Size([2, 2])"),
    Change("the same again", "y = y * $v", "1.0", "float('1.0')", needs="numbers", same=True),
]

#: For places from which what is there can be taken away; the forward knows what to do then.
DELETED = Change("it is taken away", "y = y * (2 if found is None else found)", "1.0", do="delete", needs="anything")
