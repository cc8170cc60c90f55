"""Why a call runs as it was: sentences that know their kind of reason, and what a user can do about it."""

from __future__ import annotations

import string
from dataclasses import dataclass

COMFY, WEBUI, PYTHON = "comfy", "webui", "python"
HOSTS = {COMFY: "ComfyUI", WEBUI: "A1111 and Forge", PYTHON: "Python"}


class Reason(str):
    """A reason in words, as a clause behind "because", that knows its kind. It equals and prints as its words.

    Attributes:
        kind: the kind, with what users can do; :data:`UNKNOWN` where nothing is known but the words.
        spelled: the kind whose sentence the words are. That may be another one: a reason that names a second reason as
            its cause has its own sentence and the kind of the second. None where the words are no kind's sentence.
        about: what was filled into that sentence, by the fields' names.
    """

    kind: Kind
    spelled: Kind | None
    about: dict[str, str]

    def __new__(
        cls, sentence: str, kind: Kind | None = None, spelled: Kind | None = None, about: dict[str, str] | None = None
    ) -> Reason:
        made = super().__new__(cls, sentence)
        made.kind, made.spelled, made.about = UNKNOWN if kind is None else kind, spelled, about or {}
        return made

    @property
    def code(self) -> str:
        """The code of its kind, which saved reports contain."""
        return self.kind.code

    def advice(self, host: str) -> str:
        """What the user of this host can do about it, a clause without a full stop."""
        return self.kind.advice(host)

    def also(self, sentence: str) -> Reason:
        """The same kind of reason in other words."""
        return Reason(sentence, self.kind)


def told(reason: str) -> Reason:
    """``reason`` itself, or plain words made a reason."""
    return reason if isinstance(reason, Reason) else Reason(reason)


def reason_of(error: BaseException) -> Reason:
    """The reason that an error was raised with, or its message."""
    first = error.args[0] if error.args else None
    return first if isinstance(first, Reason) else Reason(str(error))


@dataclass(frozen=True, eq=False)
class Advice:
    """What the user can do where that depends on the host: clauses without a full stop.

    Attributes:
        name: what the documents call it.
        python: without a host, in a script.
        comfy: in ComfyUI.
        webui: in A1111 and Forge; None is as in ComfyUI.
    """

    name: str
    python: str
    comfy: str
    webui: str | None = None

    def of(self, host: str) -> str:
        """That of this host; of one that isn't known here, as in a script."""
        return {COMFY: self.comfy, WEBUI: self.webui or self.comfy}.get(host, self.python)

    def row(self) -> str:
        """Its row in the documents."""
        return f"| {self.name} | {' | '.join(sentence_of(self.of(host)) for host in HOSTS)} |"


@dataclass(frozen=True, eq=False)
class Kind:
    """One kind of reasons. Called with what is particular to one, it gives that :class:`Reason`.

    Attributes:
        code: its name, which doesn't change.
        sentence: with fields in braces.
        means: what it is, a sentence.
        do: what the user can do, a clause, or by host.
    """

    code: str
    sentence: str
    means: str
    do: str | Advice

    def __call__(self, **about: object) -> Reason:
        return self._of_kind(self, about)

    def because(self, why: str, **about: object) -> Reason:
        """One with a reason of its own, ``why``: where that is of a kind, what can be done is what that says."""
        known = told(why).kind
        return self._of_kind(known if known.code else self, {"why": why, **about})

    def _of_kind(self, kind: Kind, about: dict[str, object]) -> Reason:
        fields = {
            name: value if isinstance(value, Reason) else f"{{{name}{f'!{as_}' if as_ else ''}:{spec}}}".format(**about)
            for _, name, spec, as_ in string.Formatter().parse(self.sentence)
            if name
            for value in [about[name]]
        }
        return Reason(self.sentence.format(**about), kind, self, fields)

    def advice(self, host: str) -> str:
        """What the user of this host can do."""
        return self.do if isinstance(self.do, str) else self.do.of(host)

    def row(self) -> str:
        """Its row in the documents."""
        words = "".join(
            text + ("" if field is None else "…") for text, field, _, _ in string.Formatter().parse(self.sentence)
        )
        return (
            f"| {f'`{words}`' if self.code else words} | {self.means} |"
            f" {sentence_of(self.do) if isinstance(self.do, str) else f'*{self.do.name}*'} |"
        )


def sentence_of(clause: str) -> str:
    """A clause as a sentence."""
    return f"{clause[0].upper()}{clause[1:]}."


REPORT = "please report it, with the text of the report"
UNKNOWN = Kind("", "anything else", "An unknown reason.", REPORT)
