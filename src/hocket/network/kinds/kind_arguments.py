"""Reads the sizes and options of a text "KIND:ARGS", and defines a kind of network."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from hocket.errors import TopologyError, did_you_mean
from hocket.network import links
from hocket.network.links import LINKS, Link
from hocket.network.topology import Topology

T = TypeVar("T")

_MOST_DIGITS = 18  # digits of a whole number; more do not fit into int64


@dataclass
class KindArguments:
    """The arguments after the colon. A kind reads each part once; parts that were not read are refused.

    known: each option that the kind reads, with its default as text; of choices, the default is the first.
    """

    text: str
    kind: "NetworkKind"
    sizes: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _, _, behind = self.text.partition(":")
        for part in filter(None, behind.split(",")):
            key, equals, value = part.partition("=")
            if not equals:
                self.sizes.append(part)
            elif key in self.options:
                raise self.wrong(f"{key} appears twice")
            else:
                self.options[key] = value

    def dims(self) -> list[int]:
        """Returns the only size, such as "4x4", as lengths."""
        [text] = self._sizes(1)
        return [self._integer(part, text) for part in text.split("x")]

    def integers(self, count: int) -> list[int]:
        """Returns `count` sizes, in order."""
        return [self._integer(text, text) for text in self._sizes(count)]

    def integer(self, key: str, default: int) -> int:
        """Returns an option that is a whole number."""
        text = self._given(key, str(default or ""))
        return default if text is None else self._integer(text, f"{key}={text}")

    def number(self, key: str, default: float) -> float:
        """Returns an option that is a positive number."""
        text = self._given(key, f"{default:g}")
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise self.wrong(f"{key}={text} is not a positive number")
        return value

    def choice(self, key: str, *choices: str) -> str:
        """Returns an option that is one of these words; the first word is the default."""
        value = self._given(key, "|".join(choices)) or choices[0]
        if value not in choices:
            raise self.wrong(f"{key}={value} is none of {', '.join(choices)}{did_you_mean(value, choices)}")
        return value

    def link(self, default: Link = LINKS["infiniband-ndr"], prefix: str = "") -> Link:
        """Returns the link set by the options link, bandwidth and latency, each with the prefix."""
        named = next((name for name, link in LINKS.items() if link == default), "")
        link = self._read(f"{prefix}link", named, links.find_link) or default
        usual = "" if math.isnan(link.bytes_per_second) else links.name_bandwidth(link.bytes_per_second)
        bandwidth = self._read(f"{prefix}bandwidth", usual, links.bytes_per_second)
        usual = "" if math.isnan(link.seconds) else links.name_seconds(link.seconds)
        link = link.with_(bandwidth, self._read(f"{prefix}latency", usual, links.seconds))
        for figure, value in (("bandwidth", link.bytes_per_second), ("latency", link.seconds)):
            if math.isnan(value):
                raise self.wrong(f"the {figure} of {link.link_class} links is unknown: set {prefix}{figure}=")
        return link

    def check_all_read(self) -> None:
        """Raises TopologyError for an option that the kind does not have. Call this after the kind has read its own."""
        for option in self.options:
            all_known = ", ".join(f"{key}={default}" for key, default in self.known.items())
            raise TopologyError(
                f"{self.text!r}: unknown option {option}; the options of {self.kind.name} and their defaults are "
                f"{all_known}{did_you_mean(option, self.known)}"
            )

    def wrong(self, what: str) -> TopologyError:
        """Returns the error for a text that cannot be read."""
        return TopologyError(f"{self.text!r}: {what}; expected {self.kind.name}:{self.kind.usage}")

    def _given(self, key: str, default: str) -> str | None:
        self.known[key] = default
        return self.options.pop(key, None)

    def _read(self, key: str, default: str, read: Callable[[str], T]) -> T | None:
        text = self._given(key, default.replace(" ", ""))
        try:
            return None if text is None else read(text)
        except TopologyError as error:
            raise self.wrong(f"{key}={text}: {error}") from None

    def _sizes(self, count: int) -> list[str]:
        sizes, self.sizes = self.sizes, []
        if len(sizes) != count:
            raise self.wrong(f"found {len(sizes)} sizes")
        return sizes

    def _integer(self, text: str, where: str) -> int:
        if not (text.isascii() and text.isdecimal()):
            raise self.wrong(f"{where!r} is not a whole number")
        if len(text) > _MOST_DIGITS:
            raise self.wrong(f"{where!r} has more than {_MOST_DIGITS} digits")
        return int(text)


@dataclass(frozen=True)
class NetworkKind:
    """One kind of network. usage: the syntax after the colon. make: makes the network from the arguments."""

    name: str
    usage: str
    about: str
    make: Callable[[KindArguments], Topology]
