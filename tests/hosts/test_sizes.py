"""The sizes that a person writes for the warm-up."""

from __future__ import annotations

import pytest

from sfast_core.hosts.sizes import EXAMPLE, Size, parse_sizes, read_sizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (EXAMPLE, [Size(1024, 1024), Size(832, 1216, 2)]),
        ("512x512\n\n768 x 512 x4\n", [Size(512, 512), Size(768, 512, 4)]),
        ("512X512;640×512, 512*768", [Size(512, 512), Size(640, 512), Size(512, 768)]),
        ("512x512x8", [Size(512, 512, 8)]),
        ("512x512, 512x512 x1 # twice\n# nothing here", [Size(512, 512)]),
    ],
)
def test_sizes(text: str, sizes: list[Size]) -> None:
    """In lines or behind commas, each once, in order."""
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["there is none", EXAMPLE]),
        ("# 512x512", ["there is none"]),
        ("512x512\n1024", ["line 2", "'1024'", "WIDTHxHEIGHT"]),
        ("512x", ["'512x'"]),
        ("512x-8", ["'512x-8'"]),
        ("512x512 2", ["'512x512 2'"]),
        ("a big one", ["'a big one'"]),
        ("510x512", ["'510x512'", "width", "steps of 8"]),
        ("512x8", ["height", "from 16 to 16384"]),
        ("512x512 x0", ["batch from 1"]),
    ],
)
def test_what_is_wrong_is_named(text: str, words: list[str]) -> None:
    """The line, what came, and what is needed."""
    with pytest.raises(ValueError) as error:
        parse_sizes(text)
    assert all(word in str(error.value) for word in words), error.value


def test_a_size_in_words() -> None:
    """As it is shown, it can be read again."""
    assert [str(size) for size in parse_sizes("64x32, 64x32 x3")] == ["64x32", "64x32 x3"]


def test_the_good_ones_are_kept() -> None:
    """Beside a message for each that can't be read."""
    found, wrong = read_sizes("64x64, 7\n96x65\n64x96 x2")
    assert found == [Size(64, 64), Size(64, 96, 2)]
    assert [message.partition(",")[0] + message.partition(",")[2][:7] for message in wrong] == [
        "sizes line 1",
        "sizes line 2",
    ]
    assert read_sizes("# none")[1] == ["sizes: there is none, needs one or more such as 1024x1024, 832x1216 x2"]
