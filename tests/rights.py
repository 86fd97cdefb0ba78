"""The rights in Redis that README and docs/settings.md name."""

from tests.pages import blocks_of


def rights_in_readme() -> tuple[list[str], list[str]]:
    """Two lists: the ledger's, and what Celery's own use of Redis needs besides."""
    (ours,) = blocks_of("Rights in Redis")
    (celerys,) = blocks_of("What Celery itself needs", "docs/settings.md")
    assert ours.language == celerys.language == "acl"
    return ours.text.split(), celerys.text.split()
