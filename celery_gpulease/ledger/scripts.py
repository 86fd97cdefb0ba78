"""Loads the Lua operations: header, includes, text.

A script's header is its signature: a sentence, `KEYS:`, `ARGV:`, `Returns:`, and `include:` for the parts that it
shares with others. What only a rare case needs is included below the usual one, since a call builds all that stands
above the place where it ends. ``python -m celery_gpulease.ledger.scripts DIR`` writes the assembled texts, for
luacheck.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

_LUA: Final = files(__package__) / "lua"
_HEADER: Final = re.compile(r"-- (KEYS|ARGV|include):(.*)")
_BELOW: Final = re.compile(r"^-- include: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """One operation: its assembled text and the names of its arguments."""

    name: str
    arguments: tuple[str, ...]
    text: str


def names() -> list[str]:
    """The names of all operations."""
    return sorted(one.name.removesuffix(".lua") for one in _LUA.iterdir() if one.name.endswith(".lua"))


@cache
def source(name: str) -> Source:
    """Reads an operation and puts each part where it includes it, once: those of its header in front of it."""
    text = (_LUA / f"{name}.lua").read_text("utf-8")
    header = _header(text)
    parts: dict[str, str] = {}
    for part in header["include"]:
        parts.update(_included(part))
    front = "\n".join(parts.values())

    def new_parts(line: re.Match[str]) -> str:
        new = {name: its for part in line[1].split() for name, its in _included(part) if name not in parts}
        parts.update(new)
        return "\n".join(new.values())

    head, blank, body = text.partition("\n\n")
    return Source(name, tuple(header["ARGV"]), f"{front}\n{head}{blank}{_BELOW.sub(new_parts, body)}")


def arguments_of(one: Source, values: dict[str, Any]) -> list[Any]:
    """The values in the order of the script's header; a missing or an unknown name is a TypeError."""
    if values.keys() != set(one.arguments):
        message = f"{one.name}.lua takes {one.arguments}, not {tuple(values)}"
        raise TypeError(message)
    return [values[name] for name in one.arguments]


def _included(part: str) -> Iterator[tuple[str, str]]:
    text = _include(part).read_text("utf-8")
    for other in _header(text)["include"]:
        yield from _included(other)
    yield part, text


def _include(part: str) -> Traversable:
    return _LUA / "include" / f"{part}.lua"


def _header(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {"KEYS": [], "ARGV": [], "include": []}
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        if match := _HEADER.fullmatch(line):
            found[match[1]] = match[2].split()
    return found


def main(directory: str) -> None:
    """Writes every assembled operation into a directory."""
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    for name in names():
        (target / f"{name}.lua").write_text(source(name).text, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
