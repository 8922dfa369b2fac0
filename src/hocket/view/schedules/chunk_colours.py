"""Colours of chunks, in the terminal and in pictures: told apart by readers who see few colours, too."""

# Okabe and Ito, "Color universal design", 2008, without black; in an order whose neighbours differ most.
_FEW = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#c9b800")
# From dark to light as viridis has them: many chunks keep their order in shades of grey.
_MANY = ("#46217a", "#3e5a9b", "#2a8a93", "#37a97c", "#86c44c", "#e3c82c")

NEUTRAL = "#5a5a5a"
"""For what is about several chunks."""


def chunk_colours(count: int) -> list[str]:
    """A colour for each of `count` chunks, "#rrggbb": distinct to eight, then a scale from the first to the last."""
    if count <= len(_FEW):
        return list(_FEW[:count])
    colours = []
    for number in range(count):
        at = number * (len(_MANY) - 1) / (count - 1)
        low = min(int(at), len(_MANY) - 2)
        colours.append(mixed(_MANY[low], _MANY[low + 1], at - low))
    return colours


def mixed(start: str, end: str, part: float) -> str:
    """The colour that lies `part` of the way, from 0 to 1, from one to another."""
    pairs = zip(_channels(start), _channels(end), strict=True)
    return "#" + "".join(f"{round(low + (high - low) * part):02x}" for low, high in pairs)


def ink_on(background: str) -> str:
    """Black or white, whichever is read better on this colour."""
    red, green, blue = _channels(background)
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "#ffffff"


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
