"""What things may be called, and what to say of a name that nothing bears. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from itertools import count

from detlab_master.core.errors import Invalid

LONGEST_WORKSPACE = 53
LONGEST_NAME = 80
_SHOWN = 20
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_KEY_LENGTH = 5


def check_name(what: str, name: str, longest: int = LONGEST_NAME) -> None:
    """Whether something may have this name: a person sees what it is, and finds it again.

    Raises:
        Invalid: it may not.
    """
    if not name.strip():
        why = "it is blank"
    elif name != name.strip():
        why = "it begins or ends with a space"
    elif len(name) > longest:
        why = f"it has {len(name)} characters, and may have {longest}"
    elif not name.isprintable():
        why = "it has characters that cannot be printed"
    else:
        return
    raise Invalid(f"{name!r} cannot be the name of a {what}: {why}")


def check_path_name(what: str, name: str, longest: int = LONGEST_NAME) -> None:
    """As `check_name`, for a name that stands in the paths of the API."""
    if "/" in name or "\\" in name or name in (".", ".."):
        raise Invalid(f"{name!r} cannot be the name of a {what}: it has a slash, or is a folder's")
    check_name(what, name, longest)


def check_key(key: str) -> str:
    """A project's key as it is kept, in capital letters.

    Raises:
        Invalid: it is none.
    """
    if not re.fullmatch(rf"[A-Za-z0-9]{{1,{_KEY_LENGTH}}}", key):
        raise Invalid(
            f"{key!r} cannot be the key of a project: it must be 1 to {_KEY_LENGTH} letters (A to Z) and digits"
        )
    return key.upper()


def make_key(name: str, taken: Collection[str]) -> str:
    """A key for a project of that name: its first letters, and a number where others have the same."""
    letters = re.sub(r"[^A-Z0-9]", "", name.upper())[:3] or "P"
    for number in count():
        suffix = _base36(number) if number else ""
        key = letters[: _KEY_LENGTH - len(suffix)] + suffix
        if key not in taken:
            return key
    raise AssertionError("there are 36^5 keys")


def _base36(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text


def there_are(names: Iterable[str], wanted: str, none: str) -> str:
    """What to add to "not found": what there is instead, and what was probably meant.

    Args:
        none: what to say where there is nothing.
    """
    found = list(names)
    if not found:
        return none
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    near = get_close_matches(wanted, found, 1)
    hint = f". Did you mean {near[0]!r}?" if near else ""
    return f"there are {', '.join(found[:_SHOWN])}{more}{hint}"
