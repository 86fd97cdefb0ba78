"""What a process counts of itself."""

from celery_gpulease.tally import MOST_LABELS, OTHER, Distribution, Measure, Tally

COUNTER = Measure("things_total", "Things.", ("kind",))
SPAN = Measure("span_seconds", "A span.", ("pool",), (0.5, 1.0))


def of(tally, measure):
    return dict(tally.readings()).get(measure, {})


def test_it_counts_by_labels_and_knows_what_has_not_happened_yet():
    tally = Tally()
    tally.count(COUNTER, "rare", by=0)
    tally.count(COUNTER, "common")
    tally.count(COUNTER, "common", by=1.5)
    assert of(tally, COUNTER) == {("rare",): 0.0, ("common",): 2.5}
    assert of(tally, SPAN) == {}


def test_a_value_lies_in_the_first_bucket_that_holds_it_bounds_included():
    tally = Tally()
    for value in (0.1, 0.5, 0.75, 7.0):
        tally.observe(SPAN, value, "default")
    assert of(tally, SPAN) == {("default",): Distribution([2, 1, 1], 8.35)}


def test_readings_are_a_copy():
    tally = Tally()
    tally.observe(SPAN, 0.1, "default")
    before = of(tally, SPAN)
    tally.observe(SPAN, 0.1, "default")
    assert before == {("default",): Distribution([1, 0, 0], 0.1)}


def test_nobodys_words_fill_the_memory():
    tally = Tally()
    for number in range(MOST_LABELS + 10):
        tally.count(COUNTER, str(number))
    found = of(tally, COUNTER)
    assert (len(found), found[OTHER,]) == (MOST_LABELS + 1, 10.0)
