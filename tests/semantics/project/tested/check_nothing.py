"""A test that uses nothing of ours."""


def test_nothing():
    pass
