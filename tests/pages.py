"""The blocks of code in README and in the other pages: a test that runs them gets them from here.

::

    install, serve = blocks_of("Quick start")         # README's; another block there makes this test fail
    (exporter,) = blocks_of("Metrics", "docs/metrics.md")
    (worker,), (send,) = commands_of("notebook")      # those of examples/notebook/README.md

`tests/unit/test_readme.py` fails as long as there is a block that no test asks for in one of these ways.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(path for pattern in ("*.md", "docs/*.md", "examples/*/*.md") for path in ROOT.glob(pattern))
README = "README.md"


@dataclass(frozen=True)
class Block:
    """A block of code: the page and the heading that it stands under, its language, and its text."""

    page: str
    section: str
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Of a shell's block, the commands: a comment may fill lines of its own."""
        return [line for line in self.text.splitlines() if shlex.split(line, comments=True)]

    @property
    def commands(self) -> list[tuple[str, ...]]:
        """The same, word by word."""
        return [tuple(shlex.split(line, comments=True)) for line in self.lines]

    @property
    def dialogue(self) -> list[tuple[str, str]]:
        """Of a console's block: each command, and what it answers."""
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)[1:]
        return list(zip(parts[::2], parts[1::2], strict=True))


def read(page: str) -> str:
    """A page's text."""
    return (ROOT / page).read_text()


def blocks_in(page: str) -> list[Block]:
    """All blocks of a page."""
    found, section, language, inside = list[Block](), "", "", None
    for line in read(page).splitlines(keepends=True):
        if inside is None and line.startswith("```"):
            language, inside = line[3:].strip(), []
        elif inside is None:
            section = line.lstrip("#").strip() if line.startswith("#") else section
        elif line.startswith("```"):
            found.append(Block(page, section, language, "".join(inside)))
            inside = None
        else:
            inside.append(line)
    return found


def all_blocks() -> list[Block]:
    """Those of all pages."""
    return [block for path in PAGES for block in blocks_in(str(path.relative_to(ROOT)))]


def blocks_of(section: str, page: str = README) -> list[Block]:
    """The blocks that stand under a heading of README or another page, and not under one of its sub-headings."""
    found = [block for block in blocks_in(page) if block.section == section]
    assert found, f"{page} has no block under {section!r}"
    return found


def commands_of(example: str) -> list[list[tuple[str, ...]]]:
    """The commands of an example's README, block by block."""
    return [block.commands for block in blocks_in(f"examples/{example}/README.md")]
