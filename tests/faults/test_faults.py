"""The enum of faults is whole."""

import pytest

from tests.faults.faults import _BLOWS, _INJECTORS, Fault


@pytest.mark.parametrize("fault", Fault)
def test_each_fault_can_be_provoked_in_one_way(fault):
    assert (fault in _BLOWS) != (fault in _INJECTORS)
