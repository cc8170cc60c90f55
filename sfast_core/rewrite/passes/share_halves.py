"""What classifier-free guidance asks twice: the part of a UNet in front of its first look at the prompt.

Guidance makes a batch of one image for two prompts. Until the first cross-attention its halves are the same, and the
largest part of that is a self-attention. That they are the same is nothing that a graph can tell: the op looks at its
operands when it runs.
"""

from __future__ import annotations

from torch.fx import Graph, Node

from ...ops.attention import attention
from ...ops.attention_of_halves import attention_of_halves
from ..graph import calls_of, insert_as, is_input, metas, named, replace, shape, value
from ..patterns import HasImpl

#: Of scores. With fewer of them half of the time is hardly more than the comparison takes.
_FEWEST = 2**26


def share_halves(graph: Graph, has_impl: HasImpl) -> int:
    """In a graph with a prompt, unmasked attention that depends on the image and numbers alone looks for equal halves.

    An image has 4 dimensions or more, a timestep 1 or none; a prompt has 3, and what goes with it, such as SDXL's
    pooled prompt, 2.
    """
    of_prompts: set[Node] = set()
    for node in graph.nodes:
        if (is_input(node) and value(node).dim() in (2, 3)) or not of_prompts.isdisjoint(node.all_input_nodes):
            of_prompts.add(node)
    shared = 0
    for node in calls_of(graph, attention) if of_prompts else ():
        call = named(node)
        if node in of_prompts or call.mask is not None or call.is_causal or value(call.q).dim() != 4:
            continue
        batch, heads, queries, _ = shape(call.q)
        if batch * heads * queries * shape(call.k)[2] < _FEWEST:
            continue
        arguments = (call.q, call.k, call.v, call.scale)
        if has_impl(attention_of_halves, *metas(arguments)):
            replace(node, insert_as(node, value(node), attention_of_halves, *arguments))
            shared += 1
    return shared
