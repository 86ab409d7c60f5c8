import pytest

from embodied.runs.options import CheckpointConfig
from embodied.runs.turns import CheckpointTurns


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def turns(**options) -> tuple[CheckpointTurns, Clock]:
    clock = Clock()
    return CheckpointTurns(CheckpointConfig(**options), clock), clock


def test_steps_alone_decide_until_the_minutes_are_over():
    due, clock = turns(every=3, minutes=2.0)
    assert [due.due(step) for step in range(1, 7)] == [False, False, True, False, False, True]
    clock.now += 119.9
    assert not due.due(1)
    clock.now += 0.2
    assert due.due(1)
    assert not due.due(1, by_clock=False)
    assert due.due(3, by_clock=False)


def test_the_minutes_begin_anew_with_each_checkpoint():
    due, clock = turns(every=1000, minutes=2.0)
    clock.now += 300
    with due.writing():
        pass
    assert not due.due(1)
    clock.now += 120
    assert due.due(1)


def test_writing_by_the_clock_takes_at_most_a_twentieth_of_the_time():
    due, clock = turns(every=1000, minutes=1.0)
    with due.writing():
        clock.now += 10
    clock.now += 199
    assert not due.due(1)
    clock.now += 1
    assert due.due(1)


def test_a_checkpoint_that_fails_has_had_its_turn():
    due, clock = turns(every=1000, minutes=1.0)
    clock.now += 60
    with pytest.raises(OSError, match="full"), due.writing():
        raise OSError("full")
    assert not due.due(1)


def test_without_minutes_the_clock_does_not_count():
    due, clock = turns(every=1000, minutes=None)
    clock.now += 1e9
    assert not due.due(1)


@pytest.mark.parametrize("minutes", [0.0, -1.0])
def test_minutes_that_mean_nothing_are_refused(minutes):
    with pytest.raises(ValueError, match="null to count iterations only"):
        CheckpointConfig(minutes=minutes)
