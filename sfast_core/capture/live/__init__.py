"""Code that isn't the model's and runs live, between a program's segments: on real tensors, with the call's own
options.
"""

from .call import LiveCall, Recalled
from .errors import AnotherStructure
from .form import Form, copies, fill
from .options import Foreign, Traced, Unread, again, name_of, outline
from .repeatable import may_run_twice
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
    "may_run_twice",
    "name_of",
    "outline",
]
