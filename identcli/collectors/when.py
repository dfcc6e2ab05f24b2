"""When to measure: a function of the step, so that any loop can have its own."""

from collections.abc import Callable

When = Callable[[int], bool]


def every(interval: int, last: int | None = None) -> When:
    """Updates 0, interval, 2·interval, …, and `last`. An interval of 0 measures only update 0 and `last`."""

    def due(step: int) -> bool:
        return step == last or (step % interval == 0 if interval > 0 else step == 0)

    return due
