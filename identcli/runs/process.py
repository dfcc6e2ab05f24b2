"""What holds for a whole process of Python. Nothing is imported here that the first line of a command doesn't need."""

import atexit
import gc


def spare_the_collector() -> None:
    """Don't look for garbage where there is none.

    typer and torch make a million objects at start, none of them garbage. Python would look through all of them dozens
    of times, for up to a second, and once more at the end: so it looks after every 10,000 new ones, not every 700, and
    at the end not at all. Called a second time it changes nothing.
    """
    gc.set_threshold(10_000)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
