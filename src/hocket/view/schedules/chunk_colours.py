"""Colours of chunks, in the terminal and in pictures, chosen for colour-blind readers too."""

# Okabe and Ito, "Color universal design", 2008, without black; ordered so that neighbours differ most.
_FEW = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c", "#c9b800")
# From dark to light, after viridis: the order of many chunks stays visible in shades of grey.
_MANY = ("#46217a", "#3e5a9b", "#2a8a93", "#37a97c", "#86c44c", "#e3c82c")

NEUTRAL = "#5a5a5a"
"""The colour of an item that concerns several chunks."""


def chunk_colours(count: int) -> list[str]:
    """Returns a colour "#rrggbb" for each of `count` chunks: up to eight distinct ones, above that a scale."""
    if count <= len(_FEW):
        return list(_FEW[:count])
    colours = []
    for number in range(count):
        at = number * (len(_MANY) - 1) / (count - 1)
        low = min(int(at), len(_MANY) - 2)
        colours.append(mixed(_MANY[low], _MANY[low + 1], at - low))
    return colours


def mixed(start: str, end: str, part: float) -> str:
    """Returns the mix of two colours: `start` for part=0, `end` for part=1."""
    pairs = zip(_channels(start), _channels(end), strict=True)
    return "#" + "".join(f"{round(low + (high - low) * part):02x}" for low, high in pairs)


def ink_on(background: str) -> str:
    """Returns black or white, whichever is easier to read on this colour."""
    red, green, blue = _channels(background)
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "#ffffff"


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
