"""The profile of a machine: the lengths in bytes at which data takes another way between ranks.

Rank 0 reads HOCKET_PROFILE for all ranks: the name of a processor (`_core.PROFILES`), or a TOML file with some of these
lengths, each a number of bytes or "never". Without it, and for what a file leaves out, the processor decides. The
fields are explained in csrc/machine/profile.h.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hocket import _core
from hocket.errors import did_you_mean
from hocket.runtime.variables import PROFILE

FIELDS = ("own_cache", "all_caches", "fetch_huge", "fetch_small", "halve")
_NEVER = _core.Profile.NEVER


def read_profiles(environ: Mapping[str, str]) -> tuple[list[int], list[int]]:
    """Returns the lengths for ranks with a core each, and those for ranks that share cores, in the order of FIELDS.

    Raises ValueError if HOCKET_PROFILE is neither a known name nor a file of such lengths.
    """
    asked = environ.get(PROFILE, "")
    name = asked if asked in _core.PROFILES else _core.OWN_PROFILE
    own, shared = (_lengths(_core.profile_of(name, shares_cores)) for shares_cores in (False, True))
    if asked in ("", name):
        return own, shared
    given = _read(asked)
    for lengths in (own, shared):
        lengths[:] = [given.get(field, length) for field, length in zip(FIELDS, lengths, strict=True)]
    return own, shared


def profile_from(lengths: Sequence[int], *, shares_cores: bool) -> Any:
    """Returns the core's profile of such lengths."""
    own_cache, all_caches, fetch_huge, fetch_small, halve = lengths
    return _core.Profile(own_cache, all_caches, fetch_huge, fetch_small, halve, shares_cores)


def _lengths(profile: Any) -> list[int]:
    return [getattr(profile, field) for field in FIELDS]


def _read(path: str) -> dict[str, int]:
    import tomllib  # seldom needed, and every rank imports this module

    where = f"{PROFILE}={path}"
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        names = ", ".join(_core.PROFILES)
        raise ValueError(f"{where}: expected one of {names}, or a file{did_you_mean(path, _core.PROFILES)}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    lengths = {}
    for field, value in given.items():
        if field not in FIELDS:
            raise ValueError(f"{where}: expected {', '.join(FIELDS)}; found {field}{did_you_mean(field, FIELDS)}")
        if value != "never" and (type(value) is not int or not 0 < value <= _NEVER):
            raise ValueError(f'{where}: {field}: expected a number of bytes from 1 on, or "never"; found {value!r}')
        lengths[field] = _NEVER if value == "never" else value
    return lengths
