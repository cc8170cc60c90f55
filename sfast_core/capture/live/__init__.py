"""Code that isn't the model's and runs live, between a program's segments: on real tensors, with the call's own
options.
"""

from ..errors import AnotherStructure
from .call import LiveCall, Recalled
from .form import Form, copies, fill
from .options import Foreign, Traced, Unread, again, name_of, outline
from .surroundings import Surroundings
from .taken_in import TakenIn, TakenInPaths, functions_in

__all__ = [
    "AnotherStructure",
    "Foreign",
    "Form",
    "LiveCall",
    "Recalled",
    "Surroundings",
    "TakenIn",
    "TakenInPaths",
    "Traced",
    "Unread",
    "again",
    "copies",
    "fill",
    "functions_in",
    "name_of",
    "outline",
]
