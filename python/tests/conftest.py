"""Every test begins, and leaves, with the number of threads that the suite began with."""

import threading

import pytest

import kvant


@pytest.fixture(autouse=True)
def threads():
    before = kvant.get_num_threads()
    yield
    kvant.set_num_threads(before)


@pytest.fixture
def in_threads():
    """in_threads(count, work) calls work(0) … work(count - 1), each in a thread, and raises what one of them raises."""

    def run(count, work):
        failures = []

        def guarded(index):
            try:
                work(index)
            except BaseException as e:  # noqa: BLE001: it is raised below
                failures.append(e)

        workers = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        if failures:
            raise failures[0]

    return run
