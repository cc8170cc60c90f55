"""The documents as pages behind the badge's links: whatever their Markdown says is there, and its links lead somewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from nodes.document import FOLDER, as_html, page, picture

PAGES = sorted(path.name for path in FOLDER.glob("*.md"))


class Read(HTMLParser):
    """What a browser would find: text outside of code, links, anchors, pictures, and elements that were left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.pictures: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.links += [found["href"]] if "href" in found else []
        self.pictures += [found["src"]] if "src" in found else []
        self.anchors |= {found["id"]} if "id" in found else set()
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"code", "style"} & set(self.open):
            self.words.append(data)


@pytest.mark.parametrize("name", PAGES)
def test_a_page(name: str) -> None:
    text = page(name)
    assert text is not None
    read = Read(text)
    assert not [tag for tag in read.open if tag != "!doctype"]
    rest = " ".join(read.words)
    assert not re.search(r"\]\(|\|\s*---|\*\*|^#|```|<!--", rest, re.MULTILINE), rest
    for link in read.links:
        if "://" not in link:
            target, _, anchor = link.partition("#")
            there = page(target) if target else text
            assert there is not None and (not anchor or anchor in Read(there).anchors), link
    for source in read.pictures:
        assert picture(*source.split("/")) is not None, source


def test_what_is_written_is_there() -> None:
    source = (
        "# A page\n\nFirst line\nwith `a < b`, **bold [link](limits.md#limits)**, *it*, 3 * 4 * 5.\n\n- one\n  more\n- two\n"
        "1. first\n\n| a | b |\n|---|---|\n| `x` \\| z | [out](../README.md) |\n\n```\n# code <b>\n\n- as it is\n```\n"
    )
    assert as_html(source).splitlines() == [
        '<h1 id="a-page">A page</h1>',
        '<p>First line with <code>a &lt; b</code>, <b>bold <a href="limits.md#limits">link</a></b>, <i>it</i>, 3 * 4 * 5.</p>',
        "<ul><li>one more</li></ul>",
        "<ul><li>two</li></ul>",
        '<ol><li value="1">first</li></ol>',
        "<table><tr><th>a</th><th>b</th></tr><tr><td><code>x</code> | z</td><td>out</td></tr></table>",
        "<pre><code># code &lt;b&gt;",
        "",
        "- as it is</code></pre>",
    ]


def test_nothing_but_pages_is_given() -> None:
    assert page("../README.md") is None and page("nothing.md") is None and picture("..", "README.md") is None
    assert picture("images", "comfyui-badge.png") is not None
