"""Code that isn't the model's and runs live, between a program's segments: on real tensors, with the call's own options."""

from .call import LiveCall, Recalled
from .errors import AnotherStructure
from .form import Form, copies, fill
from .options import Foreign, Traced, Unread, again, name_of, outline
from .surroundings import Surroundings

__all__ = ["AnotherStructure", "Foreign", "Form", "LiveCall", "Recalled", "Surroundings", "Traced", "Unread", "again", "copies", "fill", "name_of", "outline"]
