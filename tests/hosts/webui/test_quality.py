"""A quality below exact in a real webui: said in the infotext, and gone with the setting."""

from __future__ import annotations

import json

import pytest

from tests.hosts.webui.live_webui import LiveWebui
from tests.hosts.webui.pictures import assert_same

pytestmark = pytest.mark.host


def test_a_quality_below_exact(webui: LiveWebui) -> None:
    """A picture of its own, within what one sees; the infotext says that it is, and what was done.

    Without it pictures are what they were.
    """
    exact = webui.generate("txt2img", {}, [{"enabled": True}])
    near = webui.generate("txt2img", {}, [{"enabled": True, "quality": "near-exact"}])
    text = json.loads(near["info"])["infotexts"][0]
    assert "Fast Compile quality: near-exact" in text and "linear layers in 8 bits" in text
    assert_same(near, exact, 40)
    again = webui.generate("txt2img", {}, [{"enabled": True}])
    assert_same(again, exact, 1)  # the first step of a size is the module's own, and rounds otherwise
    assert "quality" not in json.loads(again["info"])["infotexts"][0]
