"""What a person sees while a run goes on, on standard error: a bar on a terminal, else a line now and then."""

import logging
import sys
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_REFRESHES = 0.2

logger = logging.getLogger("ident")


class Live:
    """Shows step, loss, tokens a second and time left of one run.

    bar: draw a progress bar when standard error is a terminal. Without one, at most a line every 10 s; `title` begins
    it.
    """

    def __init__(self, title: str, steps: int, tokens_a_step: int, *, bar: bool, start: int = 0) -> None:
        self._title, self._steps, self._tokens = title, steps, tokens_a_step
        self._started, self._first = time.monotonic(), start
        self._shown = self._started
        self._validation = ""
        self._measured = ""
        self._bar = _bar(title, steps, start) if bar and sys.stderr.isatty() else None

    def __enter__(self) -> "Live":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def say(self, text: str) -> None:
        """One line, above the bar if there is one; into run.log as well."""
        logger.info(text)
        if self._bar:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(f"{self._title}: {text}", file=sys.stderr, flush=True)

    def validated(self, loss: float) -> None:
        """Show the newest validation loss from now on."""
        self._validation = f"  val {loss:.4f}"

    def measured(self, medians: Mapping[str, float]) -> None:
        """Show the newest medians of the collectors from now on."""
        self._measured = "".join(f"  {name} {value:.2g}" for name, value in medians.items())

    def updated(self, done: int, loss: float) -> None:
        """`done` updates are made, the last at `loss`."""
        now = time.monotonic()
        interval = SECONDS_BETWEEN_REFRESHES if self._bar else SECONDS_BETWEEN_LINES
        if now - self._shown < interval and done < self._steps:
            return
        self._shown = now
        speed = (done - self._first) * self._tokens / max(now - self._started, 1e-9)
        text = f"loss {loss:.4f}{self._validation}{self._measured}  {speed:,.0f} tokens/s"
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=done, text=text)
            return
        left = (now - self._started) / max(done - self._first, 1) * (self._steps - done)
        self.say(f"step {done}/{self._steps}  {text}  {left:.0f} s left")


def _bar(title: str, steps: int, start: int) -> Progress:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
    )
    bar.add_task(title, total=steps, completed=start, text="")
    return bar
