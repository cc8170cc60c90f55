"""In what a call leaves behind, and in what leaves no trace.

Whose function, its name, what its source has in the place of what, and the scenario that goes wrong then.
"""

from __future__ import annotations

from typing import Any

from sfast_core.capture import trace, tracer, unchanged
from sfast_core.capture.call import Call
from sfast_core.capture.guards import arguments, effects

FAULTS: tuple[tuple[Any, str, str, str, str], ...] = (
    (effects.EffectsFinder, '_another', 'return True  # an equal', 'pass  # an equal', 'unseen:a dict that is put back'),
    (tracer, 'has_read', 'id(value) in reads.seen or ', '', 'arguments:by a function'),
    (tracer, 'has_read', 'any(name in each for each in words) or ', '', 'arguments:by a copy'),
    (tracer, 'has_read', ' or not name.isidentifier()', '', 'unseen:an argument whose key is no name'),
    (tracer, 'has_read', 'reads.anything or ', '', 'arguments:by any name'),
    (tracer, 'has_read', 'any(cls is type(value) for cls, _ in reads.receivers) or ', '', 'arguments:by a method that asks which it is'),
    (tracer, 'has_read', ' or not names.isdisjoint(_kept(value))', '', 'arguments:by a computed name'),
    (tracer, 'has_read', 'reads.loose | reads.stored', 'reads.stored', 'arguments:by a computed name'),
    (tracer, 'has_read', 'reads.loose | reads.stored', 'reads.loose', 'arguments:written to'),
    (arguments, '_kept', 'names = set(table)', 'names = set()', 'arguments:by a computed name'),
    (arguments, '_kept', 'if isinstance(value, torch.nn.Module):', 'if False:', 'unseen:a part of an argument'),
    (arguments, '_kept', 'if not is_given(owner.__module__):', 'if False:', 'arguments:by its class'),
    (effects.EffectsFinder, 'find', 'self._object(seen, value, value is root)', 'pass', 'effect:kept for the next call: a previous output by a computed name'),
    (effects.EffectsFinder, 'find', 'self._container(held)', 'pass', 'effect:a counter in: a list'),
    (effects.EffectsFinder, 'find', 'self._rest()', 'pass', "effect:a counter in: a class's attribute, by type"),
    (effects.EffectsFinder, 'find', 'if self._wrong:', 'if False:', 'effect:a counter in: a list'),
    (effects.EffectsFinder, '_rest', 'reads.carriers.note(reads, reads.stored, anything=False)', 'None', 'effect:kept for others: an attribute of functions in a list'),
    (effects.EffectsFinder, '_object', 'self._reads.note(seen, name)', 'pass', 'effect:kept for others: an attribute that others set back'),
    (effects.EffectsFinder, '_object', '((seen.table, seen.before), *seen.parts)', '((seen.table, seen.before),)', 'effect:kept for others: features in a buffer registered anew'),
    (effects.EffectsFinder, '_attribute', 'name in seen.found or seen.computed', 'False', 'effect:kept for the next call: a previous output by a computed name'),
    (effects.EffectsFinder, '_attribute', 'name in seen.found or seen.computed', 'name in seen.found', 'effect:kept for the next call: a previous output by a computed name'),
    (effects.EffectsFinder, '_attribute', 'if not self._equality.same(now, then):', 'if False:', 'effect:kept for the next call: a previous output by a computed name'),
    (effects.EffectsFinder, '_attribute', 'if not self._another(now, then):', 'if True:', 'effect:kept for others: features by a computed name'),
    (effects.EffectsFinder, '_attribute', 'not put()', 'False', 'effect:kept for others: features'),
    (effects.EffectsFinder, '_container', 'if not self._exact.same_items(held.value, held.before, held.kind):', 'if False:', 'effect:kept for others: maps appended to a deque'),
    (effects.EffectsFinder, '_container', 'self._list(held, key)', 'pass', 'effect:a counter in: a list'),
    (effects.EffectsFinder, '_container', 'self._dict(held, key)', 'pass', 'effect:a counter in: a dict that is consumed'),
    (effects.EffectsFinder, '_list', 'held.read and self._exact.same_items(now, before, held.kind)', 'held.read', 'effect:a counter in: a list'),
    (effects.EffectsFinder, '_list', 'elif held.read:', 'elif False:', 'effect:a counter in: a global list'),
    (effects.EffectsFinder, '_list', 'not held.written <= _EXTENDING or ', '', 'effect:kept for others: maps inserted'),
    (effects.EffectsFinder, '_list', 'len(now) < len(before) or ', '', 'unseen:a list that gets shorter'),
    (effects.EffectsFinder, '_list', 'not all(map(operator.is_, now, before)) or ', '', 'unseen:a list that begins with something else'),
    (effects.EffectsFinder, '_list', 'not extend()', 'False', 'effect:kept for others: maps appended to a list'),
    (effects.EffectsFinder, '_dict', 'elif held.read and not self._equality', 'elif False and not self._equality', 'effect:kept for others: maps appended to a dict of lists'),
    (effects.EffectsFinder, '_dict', 'held.read and not self._equality.same_items(now, held.before, held.kind)', 'False', 'unseen:a number in a dict that is gone through'),
    (effects.EffectsFinder, '_dict', 'not held.written <= _SETTING or ', '', 'unseen:a dict that is cleared'),
    (effects.EffectsFinder, '_dict', 'before.keys() - now.keys() or ', '', 'unseen:an item that is taken out'),
    (effects.EffectsFinder, '_dict', 'not update()', 'False', "effect:kept for others: a dict's entry"),
    (effects.EffectsFinder, '_rest', 'self._global(key, place, now)', 'pass', 'effect:kept for others: a global that was one before'),
    (effects.EffectsFinder, '_rest', 'elif self._another(now, place.then):', 'elif False:', "effect:kept for others: another file's global that has a setter"),
    (effects.EffectsFinder, '_rest', 'if not self._is_handed(cls, name, now) and self._another(now, attributes.get(name, MISSING)):', 'if False:', "effect:a counter in: a class's attribute, by type"),
    (effects.EffectsFinder, '_rest', 'reads.classes[cls, name] = then', 'pass', 'options:set to what it was'),
    (effects.EffectsFinder, '_is_handed', 'self._effects.are_options(options)', 'True', "effect:a counter in: a class's attribute, by type"),
    (effects.EffectsFinder, '_is_handed', 'and not self._live_finds(name)', '', 'options:live code looks for them'),
    (effects.EffectsFinder, '_rest', 'if self._another(content_of(cell), then):', 'if False:', "effect:kept for others: a closure's variable"),
    (effects.EffectsFinder, '_rest', 'if self._another(now, asked.then):', 'if False:', 'effect:kept for others: a slot that had one'),
    (effects.EffectsFinder, '_global', 'place.read = True', 'pass', 'effect:kept for others: a global that others set back'),
    (effects.Effects, 'add', 'else:\n                return False', 'else:\n                found.append((None, leaf))', 'effect:kept for others: a set'),
    (effects.Effects, 'add', 'found.append((of_call.of(leaf), None))', 'found.append((None, leaf))', 'effect:kept for others: features'),
    (effects.Effects, 'add', 'self.targets.add(id(target))', 'pass', 'unseen:another list to append to'),
    (trace.RecordedCall, 'trace', 'if root is not None and (left := guard.leaving(known).changed(root)):', 'if False:', 'effect:statistics: a class that is changed'),
    (unchanged.Unchanged, 'check', 'if tensor is not None and tensor._version != version:', 'if False:', 'unseen:a write to the input'),
    (unchanged.Unchanged, 'check', 'if tensor is not None and not bool(torch.isclose', 'if False and not bool(torch.isclose', 'effect:statistics: a BatchNorm that counts nothing'),
    (trace.RecordedCall, '_why_outside', 'moved = random.moved()', 'moved = False', 'unseen:random numbers that nothing uses'),
    (trace.RecordedCall, '_why_outside', 'self._recorder.draws or', '', 'unseen:random numbers that a library draws'),
    (trace.RecordedCall, '_why_outside', 'random.foreign_moved() if self._reads.chance else random.numpy_moved()', 'False', 'unseen:random numbers'),
    (trace.RecordedCall, '_why_outside', 'moved and self._recorder.drawn', 'moved', "unseen:random numbers of PyTorch's that another thread draws"),
    (trace.RecordedCall, '_why_result', 'if reads.refused is not None:', 'if False:', 'effect:what gives another each time: a generator'),
    (
        Call, 'writes_arguments',
        'or any(now is not then for now, then in zip(after.tensors, before.tensors, strict=True))\n',
        '\n', 'effect:arguments and results: a list that was passed, its tensor replaced',
    ),
    (
        Call, 'writes_arguments',
        'or any(now.value is not then.value for now, then in zip(after.objects, before.objects, strict=True))\n',
        '\n', 'unseen:an object in a list that was passed',
    ),
    (tracer.Tracer, '_fit', 'if call.writes_arguments()', 'if False', 'unseen:an object in a list that was passed'),
    (Call, 'writes_arguments', 'after.key != before.key\n            or ', '', 'effect:arguments and results: a list that was passed, with a number'),
)
