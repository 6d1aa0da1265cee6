import signal

import pytest

from e3bm.interruption import stop_politely, time_is_over, time_limit


def test_a_signal_becomes_a_request_and_a_second_one_an_interrupt():
    with stop_politely() as request:
        assert not request.made
        signal.raise_signal(signal.SIGTERM)
        assert request.made
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_handlers_come_back():
    before = signal.getsignal(signal.SIGINT)
    with stop_politely():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before


def test_the_end_of_a_time_limit_is_a_request_inside_it_only():
    with time_limit(0.0), stop_politely() as request:
        assert request.made
    with stop_politely() as request:
        assert not request.made
    with time_limit(3600.0), stop_politely() as request:
        assert not request.made


def test_no_limit_inside_a_limit_and_the_limit_afterwards():
    with time_limit(0.0):
        with time_limit(None):
            assert not time_is_over()
        assert time_is_over()
