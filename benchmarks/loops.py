"""nanoGPT's loop and ident's as functions that make n steps, here or each in a process of its own.

Nothing heavy is imported at the top: a process that runs nanoGPT's loop holds nothing of ident's but the corpus.
"""

import importlib.util
import io
import multiprocessing
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Any

import yaml

from identcli.runs.process import spare_the_collector, tune

if TYPE_CHECKING:
    from torch import Tensor

    from identcli.data.corpus import Corpus

Block = Callable[[int], None]  # makes n steps
Loop = Callable[[Callable[[], int]], None]  # makes as many steps as its argument says, then asks again, for ever

# So many steps that no benchmark reaches the last one, at which a run evaluates and ends.
STEPS = 1_000_000

TINY = {"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 8, "dropout": 0.0, "bias": True}


def sizes_of(scale: str) -> tuple[dict[str, Any], int]:
    """The model's sizes and the batch size of conf/scale; `tiny` is for trials."""
    if scale == "tiny":
        return dict(TINY), 2
    from identcli.config.folders import conf_dir

    chosen = yaml.safe_load((Path(conf_dir()) / "scale" / f"{scale}.yaml").read_text(encoding="utf-8"))
    return chosen["model"], chosen["batch_size"]


def corpus_for(scale: str) -> "Corpus":
    """Tiny Shakespeare; for trials a short generated text, which needs no download."""
    from identcli.data.corpora import load

    generated = {"name": "markov", "states": 7, "length": 2000, "seed": 0, "concentration": 0.3}
    return load(generated if scale == "tiny" else {"name": "tiny_shakespeare"})


def nanogpt_module(checkout: Path) -> ModuleType:
    """nanoGPT's `model.py`, loaded from a checkout."""
    source = checkout / "model.py"
    if not source.is_file():
        sys.exit(f"error: {source}: no such file; --nanogpt names a checkout of nanoGPT")
    spec = importlib.util.spec_from_file_location("nanogpt_model", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass asks where it lives
    spec.loader.exec_module(module)
    return module


def nanogpt_loop(module: ModuleType, corpus: "Corpus", sizes: dict[str, Any], batch_size: int, folder: Path) -> Loop:
    """What nanoGPT's train.py does in a step on a CPU: learning rate, forward, the next batch from a memory-mapped
    file, backward, clip, AdamW, gradients dropped."""
    import numpy as np
    import torch

    from identcli.training.schedule import WarmupCosine

    path = folder / "train.bin"
    corpus.tokens["train"].numpy().astype(np.uint16).tofile(path)
    model = module.GPT(module.GPTConfig(vocab_size=len(corpus.vocabulary), **{"bias": True, **sizes}))
    optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
    learning_rate = WarmupCosine(1e-3, STEPS)
    length = sizes["block_size"]
    done = 0

    def batch() -> tuple["Tensor", "Tensor"]:
        data = np.memmap(path, dtype=np.uint16, mode="r")
        starts = torch.randint(len(data) - length, (batch_size,))
        x = torch.stack([torch.from_numpy(data[i : i + length].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + length].astype(np.int64)) for i in starts])
        return x, y

    def steps(count: int) -> None:
        nonlocal done
        x, y = batch()
        for _ in range(count):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(done)
            _, loss = model(x, y)
            x, y = batch()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1

    def loop(wanted: Callable[[], int]) -> None:
        while True:
            steps(wanted())

    return loop


def ident_loop(
    corpus: "Corpus",
    sizes: dict[str, Any],
    batch_size: int,
    words: Sequence[str] = ("collect=off",),
    folder: Path | None = None,
    when: Callable[[int], bool] | None = None,
) -> Loop:
    """What `ident train` does in a step: the run itself, with its collectors, writer, status and log, made to wait
    between two blocks.

    words: overrides of the config, which win over the sizes. folder: an empty one for the run, or a temporary one.
    when: which steps to measure, instead of `collect.every`. The run evaluates on one batch before its first step, and
    then never.
    """
    temporary = tempfile.TemporaryDirectory(prefix="ident-benchmark-")
    place = folder or Path(temporary.name)
    defaults = {f"model.{name}": value for name, value in ({"bias": True} | sizes).items()}
    defaults |= {"batch_size": batch_size, "steps": STEPS, "eval.every": STEPS, "eval.batches": 1}
    defaults |= {"checkpoint.every": 0, "device": "cpu", "data": "markov"}
    given = {word.partition("=")[0] for word in words}
    chosen = [*(f"{name}={value}" for name, value in defaults.items() if name not in given), *words]

    def loop(wanted: Callable[[], int]) -> None:
        from identcli.config.preflight import single
        from identcli.runs.session import Prepared, Session, begin
        from identcli.training.precision import choose_device

        config = single(chosen).config
        prepared = Prepared(choose_device(config.device), corpus)
        begin(config, place, ["ident", "train", *chosen], prepared)
        run = Session(config, place, prepared, bar=False)
        if when is not None:
            assert run.collector is not None
            run.collector.when = when
        outcome = run.train(Paced(wanted))  # type: ignore[arg-type]
        raise RuntimeError(f"the run in {temporary.name if folder is None else folder} has ended: {outcome}")

    return loop


class Paced:
    """Stands in for the Interruption of a run, which is looked at after each step: there it holds the run until more
    steps are wanted."""

    def __init__(self, wanted: Callable[[], int]) -> None:
        self._wanted, self._left = wanted, wanted()

    @property
    def asked(self) -> bool:
        self._left -= 1
        if self._left == 0:
            self._left = self._wanted()
        return False


def as_block(loop: Loop) -> Block:
    """The loop as a function that makes n steps. It has a thread of its own, which does all tensor work."""
    more: SimpleQueue[int] = SimpleQueue()
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    begun = False

    def wanted() -> int:
        nonlocal begun
        if begun:
            done.put(None)
        begun = True
        return more.get()

    def whole() -> None:
        try:
            loop(wanted)
        except BaseException as failure:
            done.put(failure)

    thread = threading.Thread(target=whole, daemon=True)

    def steps(count: int) -> None:
        if thread.ident is None:
            thread.start()
        more.put(count)
        if failure := done.get():
            raise failure

    return steps


def nanogpt_block(*arguments: Any) -> Block:
    """`nanogpt_loop` as a function that makes n steps."""
    return as_block(nanogpt_loop(*arguments))


def ident_block(*arguments: Any) -> Block:
    """`ident_loop` as a function that makes n steps."""
    return as_block(ident_loop(*arguments))


def nanogpt(checkout: Path, scale: str, threads: int, folder: Path) -> Loop:
    """nanoGPT's loop at a scale."""
    import torch

    torch.set_num_threads(threads)
    sizes, batch_size = sizes_of(scale)
    return nanogpt_loop(nanogpt_module(checkout), corpus_for(scale), sizes, batch_size, folder)


def ident(
    scale: str,
    threads: int,
    folder: Path,
    words: Sequence[str] = ("collect=off",),
    when: Callable[[int], bool] | None = None,
) -> Loop:
    """ident's loop at a scale, and its run in `folder`, in a process with the command's settings."""
    spare_the_collector()
    tune()
    sizes, batch_size = sizes_of(scale)
    return ident_loop(corpus_for(scale), sizes, batch_size, [f"threads={threads}", *words], folder, when)


class Here:
    """A loop in this process: for trials, since a process of its own takes seconds to start."""

    def __init__(self, make: Callable[..., Loop], *arguments: Any) -> None:
        self._steps = as_block(make(*arguments))

    def __call__(self, steps: int) -> None:
        self._steps(steps)

    def peak_mib(self) -> float:
        return peak_mib()

    def __enter__(self) -> "Here":
        return self

    def __exit__(self, *_: object) -> None: ...


class Apart:
    """A loop in a process of its own: its memory, threads and imports are its own, as when it is used.

    `Apart(make, *arguments)` calls `make(*arguments)` there, which gives the loop; it runs in the main thread. While it
    isn't its turn the process waits and takes no time.
    """

    def __init__(self, make: Callable[..., Loop], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, make, arguments), daemon=True)
        environment = dict(os.environ)
        if make is ident:
            tune()  # as the command does before it imports torch; nanoGPT is run as it is
        try:
            self._process.start()
        finally:
            os.environ.clear()
            os.environ.update(environment)
        there.close()
        self.peak_mib()  # until it is ready: the next one would find the machine busy

    def __call__(self, steps: int) -> None:
        self._ask(steps)

    def peak_mib(self) -> float:
        """The most memory that the process has held."""
        return self._ask("peak")

    def _ask(self, what: int | str) -> Any:
        self._here.send(what)
        try:
            answer = self._here.recv()
        except EOFError:
            raise RuntimeError(f"the process of a loop ended with status {self._process.exitcode}") from None
        if isinstance(answer, SystemExit):
            raise answer
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def __enter__(self) -> "Apart":
        return self

    def __exit__(self, *_: object) -> None:
        self._here.close()
        self._process.join(10)
        self._process.kill()


def _serve(pipe: Connection, make: Callable[..., Loop], arguments: Sequence[Any]) -> None:
    sys.stdout = sys.stderr = io.StringIO()  # how far a run is, how many parameters there are
    begun = False

    def wanted() -> int:
        nonlocal begun
        try:
            if begun:
                pipe.send(0.0)
            begun = True
            while (asked := pipe.recv()) == "peak":
                pipe.send(peak_mib())
        except (EOFError, OSError):
            os._exit(0)  # nobody asks any more; a run would write down that it has failed
        return asked

    try:
        make(*arguments)(wanted)
    except KeyboardInterrupt:
        pass
    except SystemExit as told:  # one line, for whoever gave the arguments
        pipe.send(told)
    except BaseException:
        pipe.send(traceback.format_exc())


def peak_mib() -> float:
    """Peak memory of this process. Only Linux tells it without what the process had that started this one."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM"))
