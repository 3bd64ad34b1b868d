"""Every test begins, and leaves, with the number of threads that the suite began with."""

import pytest

import kvant


@pytest.fixture(autouse=True)
def threads():
    before = kvant.get_num_threads()
    yield
    kvant.set_num_threads(before)
