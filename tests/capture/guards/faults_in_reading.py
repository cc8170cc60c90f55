"""In what is noted while a call runs.

Whose function, its name, what its source has in the place of what, and the scenario that goes wrong then.
"""

from __future__ import annotations

import sys
from typing import Any

from sfast_core.capture import recorder
from sfast_core.capture.guards import attributes
from sfast_core.capture.guards.loose import LooseReads
from sfast_core.capture.guards.read_set import ReadSet
from sfast_core.capture.guards.seen_functions import SeenFunctions
from sfast_core.capture.guards.seen_values import SeenValues
from sfast_core.capture.recorder import Recorder

FAULTS: tuple[tuple[Any, str, str, str, str], ...] = (
    (attributes, '_where', 'there.absent.append(name)', 'pass', 'steering:a public attribute of the root: an object gets an attribute that has a default, directly'),
    (attributes, '_where', 'found if in_class is MISSING else found[:1]', 'found[:1]', 'structure:a child that a layer may have'),
    (attributes, '_where', 'found[home].present.append(name)', 'pass', 'steering:a public attribute of a child that is a nn.Module: another number, directly'),
    (recorder, 'asked_function', 'if code.co_filename == _FUNCTIONS and code.co_name != "fn":', 'if False:', 'structure:F.silu is a function, called by the file'),
    (recorder, 'asked_function', 'if name is not None and hasattr(torch._C.TensorBase, name):', 'if False:', 'structure:torch.Tensor.relu is patched'),
    (SeenValues, '_see', 'self.exact.add(id(value))', 'pass', 'overlooked:identity of a list'),
    (SeenValues, '_see', 'self._given_attributes(value, chain, origin)', 'pass', 'overlooked:an attribute of a number'),
    (SeenValues, '_see', 'for part in (value.func, value.args, value.keywords):', 'for part in ():', 'effect:what gives another each time: an iterator in a partial'),
    (SeenValues, '_see', 'self._cache(value, origin)', 'pass', "steering:a cached function's cache: a dict loses a key, by two names"),
    (SeenValues, '_see', 'self._attribute_of_class(value, name, below, origin)', 'pass', "steering:a class's attribute by __class__: another number, directly"),
    (SeenValues, '_see', 'self._file(value, chain, origin)', 'pass', "overlooked:another file's update"),
    (SeenValues, '_see', 'self.asked.setdefault((id(value), ""), Asked(answer, (value,), then, origin))', 'pass', 'effect:a counter in: an array'),
    (SeenValues, '_see', 'self._see(then, chain, origin)', 'pass', 'steering:a weak reference: another number, by a comprehension'),
    (
        SeenValues, '_see',
        'self.loose.update(part for name in value.__reduce__()[1] if isinstance(name, str) for part in name.split("."))',
        'pass', 'steering:operator.attrgetter of a file: another number, by a local name',
    ),
    (SeenValues, '_see', 'self._see(inner, USED, origin)', 'pass', "steering:a staticmethod that is replaced: a function's code, by a comprehension"),
    (SeenValues, '_see', 'elif not self._lenient:', 'elif False:', 'overlooked:a large numpy array'),
    (SeenValues, '_items_of', 'self._see(key, USED, Origin(held.origin, "a key"))', 'pass', "overlooked:attributes of a dict's keys"),
    (SeenValues, '_container', 'self._see(item, WHOLE, origin)', 'pass', 'overlooked:an object in a list in a dataclass, by asdict'),
    (ReadSet, '_ask_by_method', 'self._not_compared(value, origin)', 'pass', 'overlooked:memory in a list'),
    (ReadSet, '_ask_by_method', 'self._ask_it(question, (id(value), asks), origin)', 'pass', 'overlooked:whether a lock in a list is held'),
    (ReadSet, '_ran_for', 'and code_of(carried(value)) is code', 'and False', 'overlooked:a default of a named tuple'),
    (ReadSet, 'finish', 'self._place(sys.modules, file, MISSING, Origin(None, "sys.modules"))', 'pass', 'overlooked:a file that comes'),
    (LooseReads, '_cache', 'self._planned(function.__code__, function.__globals__)', 'pass', 'overlooked:what a function would keep anew'),
    (LooseReads, '_cache', 'self._ask_it(Emptied(cached), ', '(lambda *_: None)(cached, ', 'overlooked:what a function keeps from before a change'),
    (SeenValues, '_see', 'self.carriers.add(value, origin)', 'pass', 'overlooked:a function that has nothing'),
    (SeenValues, '_see', 'self._gone_through(value, kind, origin)', 'pass', 'overlooked:a class that has it not, by a computed name'),
    (LooseReads, '_follow_what_is_loose', 'self.gone_through.update(', '(lambda _: None)(', 'overlooked:a class in a list, by a computed name'),
    (SeenValues, '_items_of', 'self.carriers.add(item, ', '(lambda *_: None)(item, ', 'overlooked:a number'),
    (LooseReads, '_follow_what_is_loose', 'list(self.carriers.note(self, self.loose, anything))', '[]', 'overlooked:a function in a list'),
    (LooseReads, '_follow_what_is_loose', 'self.carriers.note(self, self.loose, anything)', 'self.carriers.note(self, self.loose, False)', 'overlooked:a function in a list, by a computed name'),
    (LooseReads, '_ask_for_the_rest', 'self.loose.update(_ASKED_BY[name])', 'pass', 'overlooked:what a function wraps'),
    (LooseReads, '_ask_for_the_rest', 'self._told.update(TOLD.intersection(_ASKED_BY[name]))', 'pass', 'overlooked:what a function says of itself'),
    (SeenValues, '_loosen', 'self.loose.add(name)', 'pass', "steering:a ModuleDict's module: another number, by a generator"),
    (SeenFunctions, '_attributes_of_function', 'self._below(self._place(table, name, table.get(name, MISSING), origin), below, origin, name)', 'pass', "steering:a function's attribute: an equal number of another class, directly"),
    (SeenFunctions, '_function', 'self._see(default, USED, origin)', 'pass', "effect:a counter in: a function's default"),
    (SeenFunctions, '_function', 'if value is not MISSING:', 'if False:', "structure:what a child's own forward closes over"),
    *(
        (SeenFunctions, '_function', 'reads.variables[name] if reads.variables[name].followed else USED', 'reads.variables[name]', each)
        for each in ('steering:what the class closes over: an object gets an attribute that has a default, by a generator',)
        if sys.version_info < (3, 13)  # where making a generator reads what that closes over as any variable
    ),
    (ReadSet, 'finish', 'self._loosen_what_is_rebound()', 'pass', 'rebound:in_line'),
    (ReadSet, '_loosen_what_is_rebound', 'name in rebound or ', '', 'rebound:for_a_while'),
    (ReadSet, '_loosen_what_is_rebound', ' or (what == ITEM and puts)', '', 'rebound:appended'),
    (LooseReads, '_read_files', 'if attributes or by_name or of_others:', 'if False:', 'file:import_module'),
    (SeenValues, '_container', 'self._any_file = self.asks_for_files = True', 'pass', 'steering:an entry of sys.modules: another number, by a local name'),
    (SeenValues, '_container', 'chain.content or chain.every or attributes', 'chain.content or chain.every', 'effect:a counter in: a list that is consumed'),
    (SeenValues, '_container', 'elif written:', 'elif False:', 'effect:kept for others: an item of a list'),
    (SeenValues, '_container', 'item = self._place(value, key, item, origin)', 'pass', 'effect:a counter in: a dict'),
    (
        SeenValues, '_container',
        'self._hold(value, kind, origin, read=True)\n                if item',
        'pass\n                if item', 'effect:kept for others: maps appended to a defaultdict',
    ),
    (SeenValues, '_container', 'self._below(item, below, origin, key)', 'pass', 'overlooked:an object in a dict'),
    (SeenValues, '_hold', 'if read:\n            self._items_of(held)', 'pass', 'effect:kept for others: maps appended to a dict of lists'),
    (SeenValues, '_object', 'self._walk(value, origin, saved=name == "state_dict")', 'pass', 'structure:the number of children'),
    (LooseReads, '_see_results', 'self._see(result, USED', '(result, USED', 'overlooked:an object in a cache with a limit'),
    (SeenValues, '_walk', 'if saved:', 'if False:', 'overlooked:a buffer that is saved no more'),
    (SeenValues, '_walk', 'self.carriers.add_tensors(table.values())', 'pass', 'overlooked:another mark on a weight'),
    (SeenValues, '_items_of', 'self.carriers.add_tensors((item,))', 'pass', 'overlooked:a mark on a weight in a list'),
    (SeenValues, '_kind', 'self._space(cls)', 'pass', 'overlooked:what a dict has for a key that it hasn\'t'),
    (SeenValues, '_space', '*of_class.__mro__[:-2]', '', "overlooked:the truth of an object's class"),
    (SeenValues, '_object', 'self._only_stored(seen, name)', 'pass', 'effect:kept for others: an attribute that others set back'),
    (SeenValues, '_object', 'self._loosen(item)', 'pass', "steering:a ModuleDict's module: another number, by a generator"),
    (SeenValues, '_object', 'seen.computed |= chain.every', 'pass', 'effect:kept for the next call: a previous output by a computed name'),
    (SeenValues, '_object', '*own, *own_of(seen.cls), ', '*own_of(seen.cls), ', 'overlooked:dataclasses.asdict'),
    (SeenValues, '_walk', 'self.counted.setdefault(id(table), (table, len(table), origin))', 'pass', 'structure:the number of parameters'),
    (SeenValues, '_called', 'for name in CALLING:', 'for name in ():', 'structure:the second of two layers gets a forward of its own'),
    (SeenValues, '_called', 'seen.found.update(usual)', 'pass', 'structure:the second of two layers gets a forward of its own'),
    (SeenValues, '_look_up', 'self._attribute(seen, part)', 'pass', 'structure:another table of children'),
    (SeenValues, '_walk', 'there = self._place(own, part, own[part], origin)', 'there = own[part]', "structure:another set of the buffers that aren't saved"),
    (LooseReads, '_ask_for_the_rest', 'self._ask(of_tensors, Origin(None, "what all tensors have"))', 'pass', 'structure:an attribute that all tensors get'),
    (SeenValues, '_look_up', 'for _, before in seen.parts:', 'for _, before in ():', 'steering:a public attribute of a child that is a nn.Module: another number, directly'),
    (SeenValues, '_class_attribute', 'self.classes[key] = spaces', 'pass', 'structure:nn.Linear.forward is patched below a class of others'),
    (ReadSet, 'started', 'for name, chain in plan.roots:', 'for name, chain in ():', 'overlooked:an attribute of another list'),
    (ReadSet, 'started', 'self._imports.add(str(variables.get("name")))', 'pass', 'steering:an import in the forward: another number, by a helper'),
    (ReadSet, '_planned', 'self._global(names, name, chain, origin)', 'pass', "overlooked:another file's update"),
    (ReadSet, '_planned', 'self.stored |= reads.stored | reads.stored_globals', 'pass', "effect:a counter in: a class's attribute, by type"),
    (ReadSet, '_planned', 'self.anything |= reads.anything', 'pass', 'computed name:what a function gives'),
    (SeenValues, '_see', 'if question is not None:', 'if False:', 'asked:the number of threads'),
    (SeenValues, '_container', 'self._of_its_class(value, MAKES_ITEMS, origin)', 'pass', "asked:a defaultdict's function in a copy"),
    (SeenValues, '_given_attributes', 'self._of_its_class(value, chain, origin)', 'pass', "asked:an attribute of a text's class"),
    (SeenValues, '_of_its_class', 'self._class_attribute(cls, below.name, Origin(None, cls.__qualname__))', 'pass', "asked:an attribute of a text's class"),
    (SeenValues, '_asked_for', 'self._ask(found, origin)', 'pass', 'asked:which folder is the current one'),
    (SeenValues, '_attribute_of_class', 'return self._ask(subclasses_of_all([cls]), origin)', 'return', 'asked:which subclasses there are'),
    (SeenFunctions, '_attributes_of_function', 'self.exact.add(id(function))', 'pass', 'asked:another function of the same code'),
    (SeenValues, '_file', 'self._ask(question, Origin(origin, name))', 'pass', "asked:a setting of a backend's"),
    (ReadSet, '_ask_for_the_rest', 'decimal.Decimal in self._kinds or ', '', 'asked:the precision of decimals in a list'),
    (ReadSet, '_ask_for_the_rest', 'if self.arrays:', 'if False:', 'asked:how NumPy prints'),
    (ReadSet, '_ask_for_the_rest', 'if names := self._told - {"__subclasses__"}:', 'if names := set():', 'asked:the names of classes in a loop'),
    (ReadSet, '_ask_for_the_rest', 'self._ask(registered(abstract), ', '(lambda *_: None)(registered(abstract), ', "asked:what is an abstract class's, by one below"),
    (ReadSet, '_ask_for_the_rest', 'self._ask(subclasses_of_all(own), ', '(lambda *_: None)(subclasses_of_all(own), ', "asked:which subclasses of what isn't known"),
    (ReadSet, 'told', 'self.asked[id(question), ""] = ', '_ = ', 'asked:whether any weight wants a gradient'),
    (Recorder, '_expect', 'self.decisions.expect(place, tells(name, told_by(name, tensor)))', 'pass', 'asked of an input:whether it wants a gradient'),
    (Recorder, '_asked', 'elif inputs and name == "storage_offset":', 'elif False:', 'asked of an input:where a view of it begins'),
)
