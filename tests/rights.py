"""The rights in Redis that README names."""

from tests.pages import blocks_of


def rights_in_readme() -> tuple[list[str], list[str]]:
    """The two lists of README's section: the ledger's, and what Celery's own use of Redis needs besides."""
    ours, celerys = blocks_of("Rights in Redis")
    assert ours.language == celerys.language == "acl"
    return ours.text.split(), celerys.text.split()
