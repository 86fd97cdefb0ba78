"""One word for one thing: what the scripts write into the journal, the metrics count and `why` explains."""

import re

from celery_gpulease.ledger import scripts
from celery_gpulease.operate import measures, stories

#: Counted, and told by what comes of it.
ONLY_COUNTED = {"reaped"}


def written():
    texts = [scripts.source(name).text for name in scripts.names()]
    return {word for text in texts for word in re.findall(r"\bnote\('(\w+)'", text)}


def test_what_the_journal_says_is_explained():
    assert set(stories.MEANINGS) == written()


def test_what_goes_back_to_the_line_does_so_for_a_reason_that_is_a_label():
    texts = [scripts.source(name).text for name in scripts.names()]
    calls = r"\b(?:back_to_place|return_died|take_up|take_up_from)\([^()]*(?:\[\d\])?[^()]*?'([\w ]+)'"
    reasons = {word for text in texts for word in re.findall(calls, text)}
    assert {"reaped", "unstarted"} <= reasons <= measures.LABELS[measures.REDELIVERIES]


def test_what_is_counted_is_known_to_the_metrics():
    assert set(measures.EVENTS) == written() | ONLY_COUNTED
