"""Loads the Lua operations: header, includes, text.

A script's header is its signature: a sentence, `KEYS:`, `ARGV:`, `Returns:`, and `include:` for the parts that it
shares with others. Redis makes all functions of a script anew at each call, and those that nobody calls took most of
its time: so a script has what it needs, and nothing else; and what only a rare case needs stands below the usual one,
where `include:` says so once more. Scripts of two layouts differ, so that Redis never takes one for the other
(ledger/agreement.py). All files are read when this module is imported: a process works to its end with the scripts that
it began with, whatever is installed in their place meanwhile. ``python -m celery_gpulease.ledger.scripts DIR`` writes
the assembled texts, for luacheck.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from celery_gpulease.ledger.layout import LAYOUT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

_HEADER: Final = re.compile(r"-- (KEYS|ARGV|include):(.*)")
_COMMENT: Final = re.compile(r"^ *--.*\n", re.MULTILINE)
_HEAD: Final = re.compile(r"\A((?:--.*\n)+)")
#: What follows is another section, which only some calls reach.
_BELOW: Final = re.compile(r"^-- include: (.*)\n", re.MULTILINE)
#: Each statement of an included part gives names to something: it begins so, at the margin.
_STATEMENT: Final = re.compile(r"^(?=local )", re.MULTILINE)
_WORD: Final = re.compile(r"[A-Za-z_]\w*")


def _read(folder: Traversable) -> dict[str, str]:
    """The texts of the Lua files in a folder, by their names."""
    lua = (one for one in folder.iterdir() if one.name.endswith(".lua"))
    return {one.name.removesuffix(".lua"): one.read_text("utf-8") for one in lua}


OPERATIONS: Final = _read(files(__package__) / "lua")
INCLUDES: Final = _read(files(__package__) / "lua" / "include")


@dataclass(frozen=True)
class Source:
    """One operation: its assembled text and the names of its arguments."""

    name: str
    arguments: tuple[str, ...]
    text: str


def names() -> list[str]:
    """The names of all operations."""
    return sorted(OPERATIONS)


@cache
def source(name: str) -> Source:
    """An operation, with what it needs of the parts that it includes in front of each of its sections."""
    text = OPERATIONS[name]
    header = _header(text)
    head, body = _HEAD.split(text)[1:]
    first, *rest = _BELOW.split(body)
    included, waiting, assembled = set[str](), list[str](), [f"-- Layout {LAYOUT}.\n", head]
    for parts, code in [
        (header["include"], first),
        *((rest[at].split(), rest[at + 1]) for at in range(0, len(rest), 2)),
    ]:
        for part, its in (one for named in parts for one in _included(named)):
            if part not in included:
                waiting += _STATEMENT.split(_COMMENT.sub("", its))
                included.add(part)
        needed = _needed(waiting, code)
        waiting = [one for one in waiting if one not in needed]
        assembled += [*needed, "\n", code]
    return Source(name, tuple(header["ARGV"]), "".join(assembled))


def arguments_of(one: Source, values: dict[str, Any]) -> list[Any]:
    """The values in the order of the script's header; a missing or an unknown name is a TypeError."""
    if values.keys() != set(one.arguments):
        message = f"{one.name}.lua takes {one.arguments}, not {tuple(values)}"
        raise TypeError(message)
    return [values[name] for name in one.arguments]


def _needed(statements: list[str], code: str) -> list[str]:
    """The statements of included parts that a section of an operation needs, in their order."""
    needed, words = list[str](), set(_WORD.findall(_COMMENT.sub("", code)))
    for statement in reversed(statements):
        named = _WORD.findall(re.split("[=(]", statement)[0])
        if words.intersection(named) - {"local", "function"}:
            words.update(_WORD.findall(statement))
            needed.insert(0, statement)
    return needed


def _included(part: str) -> Iterator[tuple[str, str]]:
    text = INCLUDES[part]
    for other in _header(text)["include"]:
        yield from _included(other)
    yield part, text


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
