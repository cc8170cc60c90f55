"""Steps that go on from tokens."""

from __future__ import annotations

from tests.fuzz.step import activation, step
from tests.fuzz.writer import IMAGE, TOKENS, VECTOR, Value, Writer


@step(TOKENS, 4)
def project(w: Writer, x: Value) -> None:
    given = w.channels()
    y = f"{w.linear(x.channels, given)}({x.name})"
    w.let(activation(w, y) if w.chance(0.3) and "$" not in y and y.count("(") < 3 else y, x, given)


@step(TOKENS, 4)
def layer_norm(w: Writer, x: Value) -> None:
    c = x.channels
    norm = w.choice(f"nn.LayerNorm({c})", f"nn.LayerNorm({c}, eps=1e-6, elementwise_affine=False)", f"nn.RMSNorm({c}, eps=1e-6)", f"nn.LayerNorm({c}, bias=False)")
    y = w.let(f"{w.layer(norm)}({x.name})", x)
    if w.chance(0.4):
        w.let(f"{y.name} * (1 + {w.vector(c)}[:, None]) + {w.vector(c)}[:, None]", y)


@step(TOKENS, 2)
def add_and_norm(w: Writer, x: Value) -> None:
    other = w.partner(x)
    if other is None:
        return
    added = other.name if w.chance(0.5) else f"{w.vector(x.channels)}.unsqueeze(1) * {other.name}"
    total = w.let(f"{x.name} + {added}", x)
    w.let(f"{w.layer(f'nn.LayerNorm({x.channels})')}({total.name})", x)


@step(TOKENS, 6)
def attend(w: Writer, x: Value) -> None:
    attention(w, x, x)


@step(TOKENS, 3)
def attend_to_others(w: Writer, x: Value) -> None:
    other = w.pick(TOKENS, lambda value: value.size != x.size)
    if other is not None:
        attention(w, x, other)


def attention(w: Writer, x: Value, context: Value) -> None:
    """Queries of one, keys and values of the other, written in one of the ways in which models write it."""
    heads = w.random.choice((1, 2, 4))
    width = 8 * heads if w.chance(0.5) else max(x.channels, 4 * heads)
    depth = width // heads
    normed = f"{w.layer(f'nn.LayerNorm({x.channels})')}({x.name})" if w.chance(0.5) else x.name
    h = w.let(normed, x, keep=False) if normed != x.name else x
    source = h if context is x else context
    q, k, v = (w.name("v") for _ in "qkv")
    if context is x and w.chance(0.4):
        packed = w.linear(x.channels, 3 * width)
        way = w.choice("chunk", "view", "reshape", "unflatten")
        if way == "chunk":
            w.line(f"{q}, {k}, {v} = {packed}({h.name}).{w.choice('chunk(3, -1)', 'chunk(3, dim=2)', f'split({width}, dim=-1)')}")
            split_heads(w, (q, k, v), x, source, heads, depth)
        else:
            shape = f"{h.name}.shape[0], {h.name}.shape[1], 3, {heads}, {depth}"
            y = f"{packed}({h.name})"
            y = f"{y}.unflatten(-1, (3, {heads}, {depth}))" if way == "unflatten" else f"{y}.{way}({shape})"
            w.line(f"{q}, {k}, {v} = {y}.{w.choice('permute(2, 0, 3, 1, 4).unbind(0)', 'permute(2, 0, 3, 1, 4)', 'transpose(1, 3).unbind(2)')}")
    else:
        for name, value in ((q, h), (k, source), (v, source)):
            w.line(f"{name} = {w.linear(value.channels, width, bias=w.chance(0.5))}({value.name})")
        split_heads(w, (q, k, v), x, source, heads, depth)
    if w.chance(0.3):
        norm = w.choice(f"nn.RMSNorm({depth}, eps=1e-6)", f"nn.LayerNorm({depth})")
        for name in (q, k):
            w.line(f"{name} = {w.layer(norm)}({name})")
    if w.chance(0.3) and depth % 2 == 0:
        rotate(w, q, k, depth)
    mask = masked(w, q, k) if w.chance(0.3) else ""
    way = w.choice("sdpa", "sdpa", "sdpa", "matmul", "matmul", "einsum", "scaled", "causal", "flags")
    if way == "matmul":
        n = depth ** -0.5
        scores = w.choice(f"({q} @ {k}.transpose(-1, -2)) * {n}", f"torch.matmul({q}, {k}.mT) / {1 / n}", f"({q} * {n}) @ {k}.mT", f"{q} @ ({k} * {n}).transpose(2, 3)", f"({q} * {n ** 0.5}) @ ({k} * {n ** 0.5}).mT",
                          f"({q} @ {k}.mT).mul({n})", f"({q} @ {k}.mT)")
        scores = f"{scores}{f' + {mask}' if mask else ''}"
        probabilities = w.choice(f"torch.softmax({scores}, dim=-1)", f"({scores}).softmax(dim=3)", f"F.softmax({scores}, -1)", f"({scores}).softmax(-2)", f"({scores}).float().softmax(-1).to({v}.dtype)",
                                 f"F.dropout(({scores}).softmax(-1), 0.3, self.training)")
        out = f"{probabilities} @ {v}"
    elif way == "einsum":
        out = f"torch.einsum('bhqk,bhkd->bhqd', (torch.einsum('bhqd,bhkd->bhqk', {q}, {k}) * {depth ** -0.5}{f' + {mask}' if mask else ''}).softmax(-1), {v})"
    elif way == "flags":
        flags = w.choice(f"torch.arange({k}.shape[2]) % 3 != 1", f"torch.ones({q}.shape[2], {k}.shape[2], dtype=torch.bool).tril()", f"{q}.mean(-1, keepdim=True) > -{k}.mean(-1)[:, :, None].abs() - 9.0")
        out = f"F.scaled_dot_product_attention({q}, {k}, {v}, attn_mask={flags}{'' if 'ones' in flags or 'mean' in flags else '[None, None, None]'})".replace("attn_mask=torch.arange", "attn_mask=(torch.arange")
        out = out.replace("!= 1[", "!= 1)[")
    elif way == "causal" and context is x:
        out = f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal=True)"
    else:
        options = (f", attn_mask={mask}" if mask else "") + (", scale=0.4" if way == "scaled" else "")
        out = f"F.scaled_dot_product_attention({q}, {k}, {v}{options})"
    y = w.let(out, x, keep=None)
    y = w.let(w.choice(f"{y.name}.transpose(1, 2).reshape({x.name}.shape[0], -1, {width})", f"{y.name}.transpose(1, 2).flatten(2)",
                       f"{y.name}.permute(0, 2, 1, 3).contiguous().view({x.name}.shape[0], {x.name}.shape[1], {width})"), x, width, keep=False)
    y = w.let(f"{w.linear(width, x.channels)}({y.name})", x, keep=False)
    if w.chance(0.3):
        w.let(f"{x.name} + {w.vector(x.channels)}[:, None] * {y.name}", x)
    else:
        w.let(w.choice(f"{x.name} + {y.name}", f"{y.name} + {x.name}", y.name), x)


def split_heads(w: Writer, names: tuple[str, ...], x: Value, source: Value, heads: int, depth: int) -> None:
    way = w.choice("view", "reshape", "unflatten")
    for name, value in zip(names, (x, source, source), strict=True):
        shaped = f"{name}.unflatten(-1, ({heads}, {depth}))" if way == "unflatten" else f"{name}.{way}({value.name}.shape[0], -1, {heads}, {depth})"
        if w.choice("a", "b") == "a" and way == "view":
            shaped = f"{name}.view({value.name}.shape[0], {value.name}.shape[1], {heads}, {depth})"
        w.line(f"{name} = {shaped}.transpose(1, 2)" if way != "reshape" else f"{name} = {shaped}.permute(0, 2, 1, 3)")


def rotate(w: Writer, q: str, k: str, depth: int) -> None:
    """Rotary embeddings of queries and keys [B, H, L, D], in the ways in which models spell them."""
    angles, half = w.name("v"), depth // 2
    w.line(f"{angles} = torch.arange(max({q}.shape[2], {k}.shape[2]), device=x.device, dtype=x.dtype)[:, None] * {w.parameter(half, plain=False)}")
    way = w.choice("halves", "pairs", "columns", "columns in place", "cosines", "cosines of halves")
    tokens_first = w.chance(0.3)
    for name in (q, k):
        here = f"{angles}[:{name}.shape[2]]"
        heads = "[None, :, None]" if tokens_first else "[None, None]"
        if tokens_first:
            w.line(f"{name} = {name}.transpose(1, 2)")
            here = f"{angles}[:{name}.shape[1]]"
        if way.startswith("columns"):
            table, pairs, out = w.name("v"), w.name("v"), w.name("v")
            w.line(f"{table} = torch.stack([{here}.cos(), -{here}.sin(), {here}.sin(), {here}.cos()], dim=-1).unflatten(-1, (2, 2)){heads}")
            w.line(f"{pairs} = {name}.{w.choice('float()', 'to(' + table + '.dtype)') if w.chance(0.5) else 'contiguous()'}.reshape(*{name}.shape[:-1], -1, 1, 2)")
            if way == "columns":
                w.line(f"{out} = {table}[..., 0] * {pairs}[..., 0] + {table}[..., 1] * {pairs}[..., 1]")
            else:
                w.line(f"{out} = {table}[..., 0] * {pairs}[..., 0]")
                w.line(f"{out}.addcmul_({table}[..., 1], {pairs}[..., 1])")
            w.line(f"{name} = {out}.reshape(*{name}.shape).type_as({name})")
        elif way.startswith("cosines"):
            cos, sin, first, second, turned = (w.name("v") for _ in range(5))
            spread = "repeat_interleave(2, -1)" if way == "cosines" else "repeat(1, 2)"
            w.line(f"{cos}, {sin} = {here}.cos().{spread}{heads}, {here}.sin().{spread}{heads}")
            if way == "cosines":
                w.line(f"{first}, {second} = {name}.reshape(*{name}.shape[:-1], -1, 2).unbind(-1)")
                w.line(f"{turned} = torch.stack([-{second}, {first}], dim=-1).flatten(3)")
            else:
                w.line(f"{first}, {second} = {name}.chunk(2, dim=-1)")
                w.line(f"{turned} = torch.cat([-{second}, {first}], dim=-1)")
            w.line(f"{name} = ({name} * {cos} + {turned} * {sin}).to({name}.dtype)")
        else:
            cos, sin = f"{here}.cos(){heads}", f"{here}.sin(){heads}"
            a, b = (f"{name}[..., :{half}]", f"{name}[..., {half}:]") if way == "halves" else (f"{name}[..., ::2]", f"{name}[..., 1::2]")
            parts = f"[{a} * {cos} - {b} * {sin}, {b} * {cos} + {a} * {sin}]"
            w.line(f"{name} = torch.cat({parts}, dim=-1)" if way == "halves" else f"{name} = torch.stack({parts}, dim=-1).flatten(-2)")
        if tokens_first:
            w.line(f"{name} = {name}.transpose(1, 2)")


def masked(w: Writer, q: str, k: str) -> str:
    """A float mask to add to scores."""
    name = w.name("v")
    made = w.choice(f"torch.zeros({q}.shape[2], {k}.shape[2], device=x.device, dtype=x.dtype).masked_fill(torch.ones({q}.shape[2], {k}.shape[2], dtype=torch.bool).tril().logical_not(), -1e4)",
                    f"torch.where(torch.arange({k}.shape[2]) < 2, 0.0, -3.0).to(x.dtype)[None, None, None]",
                    f"{q}.mean(-1, keepdim=True).expand(-1, -1, -1, {k}.shape[2]).contiguous()",
                    f"torch.linspace(0, 1, {k}.shape[2]).to(x.dtype).expand(1, 1, {q}.shape[2], -1)",
                    f"({q}[..., :1] * 0 + torch.linspace(-1, 0, {k}.shape[2]).to(x.dtype)).mean(1, keepdim=True)")
    w.line(f"{name} = {made}")
    return name


@step(TOKENS, 4)
def feed_forward(w: Writer, x: Value) -> None:
    hidden = 2 * x.channels
    h = f"{w.layer(f'nn.LayerNorm({x.channels})')}({x.name})" if w.chance(0.5) else x.name
    if w.chance(0.5):
        a, b = w.name("v"), w.name("v")
        if w.chance(0.7):
            w.line(f"{a}, {b} = {w.linear(x.channels, 2 * hidden)}({h}).{w.choice('chunk(2, -1)', 'chunk(2, dim=-1)', f'split({hidden}, dim=-1)')}")
        else:
            w.line(f"{a}, {b} = {w.linear(x.channels, hidden)}({h}), {w.linear(x.channels, hidden)}({h})")
        inner = w.choice(f"{a} * F.gelu({b})", f"F.silu({a}) * {b}", f"{a} * F.gelu({b}, approximate='tanh')", f"F.gelu({a}) * {b}", f"{a} * torch.sigmoid({b})")
    else:
        inner = w.choice("F.gelu($)", "F.gelu($, approximate='tanh')", "F.silu($)", "torch.relu($)").replace("$", f"{w.linear(x.channels, hidden)}({h})")
    y = w.let(f"{w.linear(hidden, x.channels)}({inner})", x, keep=False)
    w.let(w.choice(f"{x.name} + {y.name}", f"{y.name} + {x.name}", f"{x.name} + {w.vector(x.channels)}[:, None] * {y.name}",
                   f"torch.addcmul({x.name}, {w.vector(x.channels)}[:, None], {y.name})", y.name), x)


@step(TOKENS, 3)
def modulated_block(w: Writer, x: Value) -> None:
    """As a diffusion transformer's: shift, scale and gate of a vector, of which six come from one product."""
    c = x.channels
    emb = w.pick(VECTOR)
    if emb is None:
        return
    parts = [w.name("v") for _ in range(6)]
    y = f"{w.linear(emb.channels, 6 * c)}(F.silu({emb.name}))"
    w.line(f"{', '.join(parts)} = " + w.choice(f"{y}.chunk(6, dim=1)", f"{y}[:, None].chunk(6, dim=-1)", f"{y}.view(-1, 6, {c}).unbind(1)", f"({y}.reshape(-1, 6, {c}) + {w.parameter(6, c, plain=False)}).chunk(6, 1)"))
    at = "" if "[:, None]" in w.forward[-1] or "reshape" in w.forward[-1] else ".unsqueeze(1)"
    norm = w.layer(f"nn.LayerNorm({c}, eps=1e-6, elementwise_affine=False)")
    h = w.let(f"{norm}({x.name}) * (1 + {parts[1]}{at}) + {parts[0]}{at}", x, keep=False)
    y2 = w.let(f"{x.name} + {parts[2]}{at} * {w.linear(c, c)}({h.name})", x, keep=False)
    h = w.let(f"torch.addcmul({parts[3]}{at}, {norm}({y2.name}), 1 + {parts[4]}{at})", x, keep=False)
    w.let(f"{y2.name} + {parts[5]}{at} * {w.linear(2 * c, c)}(F.gelu({w.linear(c, 2 * c)}({h.name}), approximate='tanh'))", x)


@step(TOKENS, 2)
def modulated_in_parts(w: Writer, x: Value) -> None:
    """As where a picture is edited, or a video starts from one: parts of the tokens, or frames, have rows of their own."""
    c = x.channels
    h, cut = w.name("v"), f"{x.name}.shape[1] // 2"
    w.line(f"{h} = {w.layer(w.choice(f'nn.LayerNorm({c}, elementwise_affine=False)', f'nn.RMSNorm({c}, eps=1e-6)', f'nn.LayerNorm({c})'))}({x.name})")
    scales, shifts, gates = ([f"{w.vector(c)}.expand({x.name}.shape[0], -1)" for _ in range(2)] for _ in range(3))
    way = w.choice("joined", "in place", "frames")
    if way == "joined":
        parts = (f"{h}[:, :{cut}]", f"{h}[:, {cut}:]")
        w.line(f"{h} = torch.cat([{', '.join(f'torch.addcmul({b}[:, None], {part}, 1 + {a}[:, None])' for part, a, b in zip(parts, scales, shifts, strict=True))}], dim=1)")
    elif way == "in place":
        w.line(f"{h} = {h} * 1.5")
        for part, a, b in zip((f":{cut}", f"{cut}:"), scales, shifts, strict=True):
            w.line(f"{h}[:, {part}].mul_(1 + {a}[:, None]).add_({b}[:, None])")
    else:
        each = lambda rows: f"torch.stack([{', '.join(rows)}], 1).repeat_interleave(({x.name}.shape[1] + 1) // 2, dim=1)[:, :{x.name}.shape[1]]"  # noqa: E731
        w.line(f"{h} = {h} * (1 + {each(scales)}) + {each(shifts)}")
    y = w.let(f"{w.linear(c, c)}({h})", x, keep=False)
    if way == "frames":
        w.let(f"{x.name} + {each(gates)} * {y.name}", x)
    else:
        w.let(f"{x.name} + torch.cat(({y.name}[:, :{cut}] * {gates[0]}[:, None], {y.name}[:, {cut}:] * {gates[1]}[:, None]), dim=1)", x)


@step(TOKENS, 2)
def single_block(w: Writer, x: Value) -> None:
    """As Flux's: queries, keys, values and the feed-forward's hidden layer by one product, and both back by another."""
    heads, width, hidden = w.random.choice((1, 2)), 8, w.random.choice((16, 24))
    depth = width // heads
    emb = w.vector(x.channels)
    h = f"{w.layer(f'nn.LayerNorm({x.channels}, eps=1e-6, elementwise_affine=False)')}({x.name})" if w.chance(0.6) else x.name
    qkv, mlp, q, k, v, out = (w.name("v") for _ in range(6))
    w.line(f"{qkv}, {mlp} = {w.choice('torch.split($, [#, ^], dim=-1)', '$.split([#, ^], dim=2)', '$.split_with_sizes([#, ^], -1)')}"
           .replace("$", f"{w.linear(x.channels, 3 * width + hidden)}({h})").replace("#", str(3 * width)).replace("^", str(hidden)))
    w.line(f"{q}, {k}, {v} = {qkv}.view({x.name}.shape[0], {x.name}.shape[1], 3, {heads}, {depth}).permute(2, 0, 3, 1, 4)")
    if w.chance(0.6):
        for name in (q, k):
            w.line(f"{name} = {w.layer(f'nn.RMSNorm({depth}, eps=1e-6)')}({name})")
    if w.chance(0.6):
        rotate(w, q, k, depth)
    w.line(f"{out} = F.scaled_dot_product_attention({q}, {k}, {v}).transpose(1, 2).reshape({x.name}.shape[0], -1, {width})")
    joined = f"torch.cat(({out}, {w.choice('F.gelu($, approximate=' + repr('tanh') + ')', 'F.gelu($)', 'F.silu($)', '$').replace('$', mlp)}), {w.choice('2', '-1', 'dim=-1')})"
    y = w.let(f"{w.linear(width + hidden, x.channels)}({joined})", x, keep=False)
    w.let(w.choice(f"{x.name} + {emb}[:, None] * {y.name}", f"{x.name} + {y.name}", f"torch.addcmul({x.name}, {emb}.unsqueeze(1), {y.name})"), x)


@step(TOKENS, 2)
def double_block(w: Writer, x: Value) -> None:
    """As SD3's and Flux's: two streams with weights of their own, and one attention over both."""
    other = w.pick(TOKENS, lambda value: value is not x)
    if other is None:
        return
    heads, width = w.random.choice((1, 2)), 8
    depth = width // heads
    normed, layout = w.chance(0.6), w.choice("heads", "tokens", "flat")
    streams = []
    for value in (other, x):
        names = [w.name("v") for _ in "qkv"]
        if w.chance(0.4):
            w.line(f"{', '.join(names)} = {w.linear(value.channels, 3 * width)}({value.name}).chunk(3, dim=-1)")
        else:
            for name in names:
                w.line(f"{name} = {w.linear(value.channels, width)}({value.name})")
        for index, name in enumerate(names):
            if layout != "flat":
                w.line(f"{name} = {name}.view({value.name}.shape[0], -1, {heads}, {depth}){'.transpose(1, 2)' if layout == 'heads' else ''}")
            if normed and index < 2:
                size = width if layout == "flat" else depth
                w.line(f"{name} = {w.layer(f'nn.RMSNorm({size}, eps=1e-6)')}({name})")
        streams.append(names)
    dim = "2" if layout == "heads" else "1"
    q, k, v = (w.name("v") for _ in "qkv")
    for name, parts in zip((q, k, v), zip(*streams, strict=True), strict=True):
        w.line(f"{name} = torch.cat([{', '.join(parts)}], dim={dim})")
        if layout == "flat":
            w.line(f"{name} = {name}.unflatten(-1, ({heads}, {depth}))")
        if layout != "heads":
            w.line(f"{name} = {name}.transpose(1, 2)")
    if w.chance(0.6):
        rotate(w, q, k, depth)
    out = w.name("v")
    w.line(f"{out} = F.scaled_dot_product_attention({q}, {k}, {v}).transpose(1, 2).flatten(2)")
    at = f"{other.name}.shape[1]"
    for value, part in ((other, f"[:, :{at}]"), (x, f"[:, {at}:]")):
        w.let(f"{value.name} + {w.linear(width, value.channels)}({out}{part})", value)


@step(TOKENS, 1)
def multihead_attention(w: Writer, x: Value) -> None:
    heads, first = w.random.choice((1, 2)), w.chance(0.7)
    layer = w.layer(f"nn.MultiheadAttention({x.channels}, {heads}, batch_first={first}, bias={w.chance(0.7)})")
    h = x.name if first else f"{x.name}.transpose(0, 1)"
    mask = f", attn_mask=torch.full(({x.name}.shape[1], {x.name}.shape[1]), -3.0, dtype=x.dtype).triu(1)" if w.chance(0.4) else ""
    y = w.name("v")
    w.line(f"{y} = {h}")
    w.let(f"{x.name} + {layer}({y}, {y}, {y}, need_weights=False{mask})[0]{'' if first else '.transpose(0, 1)'}", x)


@step(TOKENS, 2)
def concatenate_tokens(w: Writer, x: Value) -> None:
    other = w.pick(TOKENS, lambda value: value.channels == x.channels)
    if other is None:
        return
    y = w.let(f"torch.cat([{other.name}, {x.name}], dim=1)", x, size=w.name("joined"))
    z = w.let(f"{y.name} + {w.linear(y.channels, y.channels)}({w.layer(f'nn.LayerNorm({y.channels})')}({y.name}))", y)
    w.let(w.choice(f"{z.name}[:, {other.name}.shape[1]:]", f"{z.name}.split([{other.name}.shape[1], {x.name}.shape[1]], dim=1)[1]", f"{z.name}.narrow(1, {other.name}.shape[1], {x.name}.shape[1])"),
          x, own=False)


@step(TOKENS, 1)
def pool_tokens(w: Writer, x: Value) -> None:
    w.let(w.choice(f"{x.name}.mean(1)", f"{x.name}[:, 0]", f"{x.name}.amax(1)", f"({x.name} * {x.name}.softmax(1)).sum(1)"), x, kind=VECTOR, size=0, own=False)


@step(TOKENS, 2)
def tokens_to_image(w: Writer, x: Value) -> None:
    like = w.pick(IMAGE, lambda value: f"image{value.size}" == x.size)
    if like is not None:
        w.let(w.choice(f"{x.name}.transpose(1, 2).reshape({like.name}.shape[0], {x.channels}, {like.name}.shape[2], {like.name}.shape[3])",
                       f"{x.name}.mT.unflatten(2, {like.name}.shape[2:])", f"{x.name}.reshape(-1, *{like.name}.shape[2:], {x.channels}).permute(0, 3, 1, 2)"),
              like, x.channels, own=False)


@step(TOKENS, 1)
def einsum(w: Writer, x: Value) -> None:
    given = w.channels()
    weight = w.parameter(given, x.channels, plain=False)
    w.let(w.choice(f"torch.einsum('blc,dc->bld', {x.name}, {weight})", f"{x.name} @ {weight}.t()", f"torch.matmul({x.name}, {weight}.T)", f"F.linear({x.name}, {weight})",
                   f"torch.tensordot({x.name}, {weight}, dims=([2], [1]))"), x, given)


@step(TOKENS, 1)
def move_tokens(w: Writer, x: Value) -> None:
    w.let(w.choice(f"{x.name}.flip(1)", f"torch.roll({x.name}, 1, 1)", f"{x.name}.roll(shifts=-1, dims=1)", f"{x.name}[:, torch.arange({x.name}.shape[1] - 1, -1, -1)]",
                   f"{x.name}.cumsum(1) / {x.name}.shape[1]"), x)
