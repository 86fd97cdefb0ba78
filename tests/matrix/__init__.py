"""`make matrix`: the tests that touch what we build on, with other versions of it. Needs Python's own library only."""
