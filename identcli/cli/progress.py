"""How far a command has come, on standard error: nothing for two seconds, then a line that rewrites itself."""

import sys
import time

PATIENCE = 2.0
SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Call it with what is done and how much there is. On a terminal one line changes; else a line every 10 s."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.started = time.monotonic()
        self.shown = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        live = sys.stderr.isatty()
        if now - self.started < PATIENCE or (
            now - self.shown < (0.2 if live else SECONDS_BETWEEN_LINES) and done < total
        ):
            return
        left = (now - self.started) * (total - done) / max(done, 1)
        if live:
            print(
                f"\r\x1b[K{self.title}: {done}/{total} layers, {left:.0f} s left", end="", file=sys.stderr, flush=True
            )
            if done == total:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        elif done < total or self.shown:
            print(f"{self.title}: {done}/{total} layers, {left:.0f} s left", file=sys.stderr, flush=True)
        self.shown = now
