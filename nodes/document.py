"""A page of the documents as HTML, for the links behind a badge: the Markdown that they are written in, and no more."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs"
#: Of the pictures that the pages show, below the documents' folder and in their addresses.
FOLDERS = ("images", "measured")
_STYLE = """
:root { color-scheme: light dark }
ul, ol { margin: .3rem 0 }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.5 system-ui, sans-serif }
table { border-collapse: collapse; display: block; overflow-x: auto; margin: 1rem 0 }
td, th { border: 1px solid #8886; padding: .25rem .5rem; text-align: left; vertical-align: top }
code, pre { font: .9em ui-monospace, monospace; background: #8882; border-radius: 3px }
code { padding: 0 .2em } pre { padding: .7rem; overflow-x: auto } pre code { padding: 0; background: none }
img { max-width: 100% }
"""
_ROW = re.compile(r"^\|(.*)\|\s*$")
_ITEM = re.compile(r"^(?:- |\d+\. )")
_SPAN = re.compile(
    r"`([^`]+)`|!\[([^\]]*)\]\(([^)]+)\)|\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)]+)\)|\*\*(.+?)\*\*|\*([^*\s][^*]*)\*|\\(.)"
)


def page(name: str) -> str | None:
    """A page, ``limits.md``, or None where there is none of this name."""
    found = {path.name: path for path in FOLDER.glob("*.md")}.get(name)
    if found is None:
        return None
    text = found.read_text("utf-8")
    title = html.escape(text.splitlines()[0].lstrip("# "))
    return f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>\n{as_html(text)}\n"


def picture(folder: str, name: str) -> Path | None:
    """A picture that the pages show, or None."""
    return {(each, path.name): path for each in FOLDERS for path in (FOLDER / each).glob("*.png")}.get((folder, name))


def as_html(text: str) -> str:
    """Headings, paragraphs, lists, tables, code and what stands within lines; comments are left out."""
    blocks = _blocks(re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL).splitlines())
    return "\n".join(_block(block) for block in blocks)


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Lines that belong together."""
    block: list[str] = []
    for line in lines:
        fenced = bool(block) and block[0].startswith("```")
        begins = (
            line.startswith(("#", "```"))
            or bool(_ITEM.match(line))
            or (bool(_ROW.match(line)) and not (block and _ROW.match(block[0])))
        )
        if fenced:
            block.append(line)
            if line.startswith("```"):
                yield block
                block = []
        elif not line.strip() or begins or (block and block[0].startswith("#")):
            if block:
                yield block
            block = [line] if line.strip() else []
        else:
            block.append(line)
    if block:
        yield block


def _block(lines: list[str]) -> str:
    first = lines[0]
    if first.startswith("```"):
        return f"<pre><code>{html.escape(chr(10).join(lines[1:-1]))}</code></pre>"
    if first.startswith("#"):
        words = first.lstrip("# ")
        level = len(first) - len(first.lstrip("#"))
        return f'<h{level} id="{anchor(words)}">{_spans(words)}</h{level}>'
    if _ROW.match(first):
        return _table([[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])] for line in lines])
    if _ITEM.match(first):
        number = f' value="{first.split(".")[0]}"' if first[0].isdigit() else ""
        kind = "ol" if number else "ul"
        return (
            f"<{kind}><li{number}>{_spans(' '.join([_ITEM.sub('', first), *map(str.strip, lines[1:])]))}</li></{kind}>"
        )
    return f"<p>{_spans(' '.join(map(str.strip, lines)))}</p>"


def _table(rows: list[list[str]]) -> str:
    head, *body = rows
    cells = [f"<tr>{''.join(f'<th>{_spans(cell)}</th>' for cell in head)}</tr>"]
    cells += [f"<tr>{''.join(f'<td>{_spans(cell)}</td>' for cell in row)}</tr>" for row in body[1:]]
    return f"<table>{''.join(cells)}</table>"


def anchor(heading: str) -> str:
    """What a heading is called in links, as GitHub calls it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _spans(text: str) -> str:
    """Code, pictures, links, bold and italic words."""
    made, end = [], 0
    for found in _SPAN.finditer(text):
        made.append(html.escape(text[end : found.start()]))
        made.append(_span(*found.groups()))
        end = found.end()
    return "".join([*made, html.escape(text[end:])])


def _span(*parts: str | None) -> str:
    code, shown, source, words, target, bold, italic, plain = parts
    if code is not None:
        return f"<code>{html.escape(code)}</code>"
    if source is not None:
        return f'<img alt="{html.escape(shown or "")}" src="{html.escape(source)}">'
    if words is not None:
        # what lies outside of the documents has no address here
        here = "://" in (target or "") or re.fullmatch(r"(?:[\w-]+\.md)?(?:#[\w-]+)?", target or "")
        return f'<a href="{html.escape(target or "")}">{_spans(words)}</a>' if here else _spans(words)
    if bold is not None:
        return f"<b>{_spans(bold)}</b>"
    return f"<i>{_spans(italic)}</i>" if italic is not None else html.escape(plain or "")
