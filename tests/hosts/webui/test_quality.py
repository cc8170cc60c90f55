"""A quality below exact in a real webui: said in the infotext, and gone with the setting."""

from __future__ import annotations

import json

import pytest

from tests.hosts.webui.live_webui import LiveWebui
from tests.hosts.webui.pictures import assert_same

pytestmark = pytest.mark.host


def test_a_quality_below_exact(webui: LiveWebui) -> None:
    """A picture of its own, within what one sees; the infotext says that it is, and what was done. Without it pictures are what they were."""
    exact = webui.generate("txt2img", {}, [{"enabled": True}])
    near = webui.generate("txt2img", {}, [{"enabled": True, "quality": "near-exact"}])
    text = json.loads(near["info"])["infotexts"][0]
    assert "Fast Compile quality: near-exact" in text and "linear layers in 8 bits" in text
    assert_same(near, exact, 40)
    again = webui.generate("txt2img", {}, [{"enabled": True}])
    assert_same(again, exact, 0)
    assert "quality" not in json.loads(again["info"])["infotexts"][0]


def test_steps_that_use_what_others_computed(webui: LiveWebui) -> None:
    """A setting, for quality "fast"; the infotext says it. In samplings that are too short nothing is used again, and that is said."""
    setting = {"override_settings": {"fast_compile_quality_reuse": True}, "override_settings_restore_afterwards": True}
    for steps, words in ((12, "may be used again by later steps"), (3, "a sampling of 3 steps is too short")):
        done = webui.generate("txt2img", {"steps": steps, **setting}, [{"enabled": True, "quality": "fast"}])
        text = json.loads(done["info"])["infotexts"][0]
        assert words in text and "nobody says" not in text, text
