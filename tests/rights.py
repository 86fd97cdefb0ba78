"""The rights in Redis that README names."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def rights_in_readme() -> tuple[list[str], list[str]]:
    """The two lists of README's section: the ledger's, and what Celery's own use of Redis needs besides."""
    section = README.read_text().partition("### Rights in Redis")[2].partition("\n## ")[0]
    ours, celerys = re.findall(r"```\n(.*?)```", section, re.DOTALL)
    return ours.split(), celerys.split()
