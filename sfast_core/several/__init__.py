"""One call on several devices: cut along its batch, a part on each, by replicas of the program and its weights.

One process and one model: the host's stays where it is, on the first device. The others have copies of its weights
(:mod:`.replica`) and the same recorded call lowered for them (:mod:`.retarget`); tensors go from device to device by
copies between streams.
"""

from .calls import Several
from .part import OfPart, OneDevice

__all__ = ["OfPart", "OneDevice", "Several"]
