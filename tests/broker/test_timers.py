"""The timer wheel."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pyrite.broker.timers import NO_SLOT, Timers


class Bell:
    """A timer that records when it was due."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.slot = NO_SLOT
        self.rung: list[float] = []

    def due(self) -> None:
        self.rung.append(self.clock.now)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.timers = Timers()

    def advance(self, to: float) -> None:
        self.now = to
        self.timers.advance(to)


def test_a_timer_is_due_once_and_not_early() -> None:
    clock = Clock()
    bell = Bell(clock)
    clock.timers.set(bell, 5.0)
    clock.advance(4.9)
    assert bell.rung == []
    clock.advance(5.0)
    clock.advance(6.0)
    assert bell.rung == [5.0]


def test_a_timer_that_is_set_again_is_due_at_the_new_time_only() -> None:
    clock = Clock()
    bell = Bell(clock)
    clock.timers.set(bell, 5.0)
    clock.timers.set(bell, 7.0)
    clock.advance(6.0)
    assert bell.rung == []
    clock.advance(7.0)
    assert bell.rung == [7.0]


def test_a_removed_timer_is_not_due() -> None:
    clock = Clock()
    bell = Bell(clock)
    clock.timers.set(bell, 5.0)
    clock.timers.cancel(bell)
    clock.advance(10.0)
    assert bell.rung == []


def test_a_timer_in_the_past_is_due_at_once() -> None:
    clock = Clock()
    clock.advance(100.0)
    bell = Bell(clock)
    clock.timers.set(bell, 5.0)
    clock.advance(100.5)
    assert bell.rung == [100.5]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.none() | st.floats(0, 50), st.floats(0, 20)), min_size=1, max_size=20
    )
)
def test_every_timer_is_due_once_within_a_tenth_of_a_second(
    steps: list[tuple[int, float | None, float]],
) -> None:
    clock = Clock()
    bells = [Bell(clock) for _ in range(5)]
    wanted: dict[int, float] = {}
    for number, when, pause in steps:
        if when is None:
            clock.timers.cancel(bells[number])
            wanted.pop(number, None)
        else:
            clock.timers.set(bells[number], when)
            wanted[number] = when
        clock.advance(clock.now + pause)
        for number, bell in enumerate(bells):
            due_at = wanted.get(number)
            if bell.rung:
                assert due_at is not None, "rung without being asked"
                assert bell.rung == [clock.now]
                assert due_at <= clock.now
                bell.rung.clear()
                del wanted[number]
            elif due_at is not None:
                assert max(due_at, clock.now - pause) + 0.2 > clock.now, "late"


def test_timers_left_over_by_a_turn_are_due_next_and_can_be_removed() -> None:
    clock = Clock()
    bells = [Bell(clock) for _ in range(40)]
    for number, bell in enumerate(bells):
        clock.timers.set(bell, 5.0 + number // 20)
    assert clock.timers.advance(6.0, lambda: True)
    rung = [bell for bell in bells if bell.rung]
    assert 0 < len(rung) < 10
    again = rung[0]
    clock.timers.set(again, 6.0)  # its time has come already: at the next moment, then
    gone = next(bell for bell in bells if not bell.rung)
    clock.timers.cancel(gone)
    while clock.timers.advance(6.0, lambda: True):
        pass
    assert [len(bell.rung) for bell in bells] == [0 if bell is gone else 1 for bell in bells]
    clock.timers.advance(6.2)
    assert len(again.rung) == 2
