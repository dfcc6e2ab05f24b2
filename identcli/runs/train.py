"""One run: from a validated config to a run folder."""

import json
import logging
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from identcli.collectors import Collector, attach, every
from identcli.config.label import label
from identcli.config.schema import RunConfig
from identcli.data.batches import Batches, require_windows
from identcli.data.corpora import load
from identcli.data.corpus import Corpus
from identcli.layouts.nanogpt import nanogpt
from identcli.layouts.places import Layout
from identcli.models.gpt import GPT, GPTConfig
from identcli.models.weights import weights
from identcli.runs.live import Live
from identcli.store import atomic, checkpoints, events, metrics, record
from identcli.training.loop import Diverged, Plan, train
from identcli.training.optimizers import build_optimizer
from identcli.training.precision import Precision, choose_device
from identcli.training.rebalancing import rebalance
from identcli.training.schedule import WarmupCosine

State = Literal["finished", "failed", "diverged", "interrupted"]
EXIT_CODES: dict[State, int] = {"finished": 0, "failed": 1, "diverged": 1, "interrupted": 130}

logger = logging.getLogger("ident")


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `step`: updates done. `error`: why it did not finish."""

    state: State
    step: int
    error: str | None = None

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.state]


@dataclass(frozen=True)
class Prepared:
    """What can be wrong with the machine or the data is found here, before any folder is made."""

    device: torch.device
    corpus: Corpus


def prepare(config: RunConfig) -> Prepared:
    """Choose the device and load the corpus. UserError: device not there, no data, a part shorter than a window."""
    device = choose_device(config.device)
    corpus = load(config.data.model_dump())
    require_windows(corpus.tokens, config.model.block_size)
    return Prepared(device, corpus)


def run(
    config: RunConfig,
    folder: Path,
    command: Sequence[str],
    *,
    live: bool = True,
    prepared: Prepared | None = None,
) -> Outcome:
    """Train as `config` says and record everything in `folder`, which exists already and belongs to this run.

    Whatever happens ends in the folder's status: finished, diverged (not finite; the part before is kept), interrupted
    (Ctrl-C, or a polite kill) or failed. Only bad input, found before training, is raised as a UserError.
    """
    prepared = prepared or prepare(config)
    with _log_to(folder / "run.log"), _interrupt_on_sigterm():
        session = Session(config, folder, command, prepared, bar=live)
        return session.train()


class Session:
    """The parts of a run, put together, and what happens to them while the loop goes on (`training.loop.Events`)."""

    def __init__(
        self, config: RunConfig, folder: Path, command: Sequence[str], prepared: Prepared, *, bar: bool
    ) -> None:
        self.config, self.folder = config, folder
        plain = config.to_dict()
        if config.threads:
            torch.set_num_threads(config.threads)
        self.precision = Precision(prepared.device, getattr(torch, config.dtype), config.tf32)
        self.precision.apply()
        record.write_config(folder, plain)
        record.write_environment(folder, _environment(command, prepared))
        characters = prepared.corpus.vocabulary.to_list()
        atomic.write_text(folder / "vocabulary.json", json.dumps(characters, ensure_ascii=False))
        record.write_status(folder, state="running", step=0, steps=config.steps, config_hash=record.config_hash(plain))

        corpus, sizes = prepared.corpus, config.model
        self.batches = Batches(corpus.tokens, sizes.block_size, config.batch_size, config.seed, prepared.device)
        torch.manual_seed(config.seed)
        self.model = GPT(GPTConfig(len(corpus.vocabulary), **sizes.model_dump())).to(prepared.device)
        self.parameters = dict(self.model.named_parameters())
        optimizer = config.optimizer.model_dump()
        self.optimizer = build_optimizer(parameters=self.model.parameters(), lr=config.lr, **optimizer)
        self.layout: Layout = nanogpt(self.model.config.attention)
        self.writer = metrics.MetricWriter(folder)
        self.collector = self._collector()
        self.eval_batches = {
            split: list(self.batches.eval_batches(split, config.eval.batches)) for split in ("train", "val")
        }
        self.started = time.monotonic()
        self.step = 0
        self.losses: dict[str, float | None] = {"train_loss": None, "val_loss": None}
        self.tokens_a_step = config.batch_size * config.grad_accum * config.model.block_size
        self.live = Live(folder.name, config.steps, self.tokens_a_step, bar=bar)
        self.plan = Plan(
            steps=config.steps,
            grad_accum=config.grad_accum,
            clip=config.clip,
            rebalance_every=0 if config.rebalance.mode == "off" else config.rebalance.every,
            eval_every=config.eval.every,
            checkpoint_every=config.checkpoint.every,
        )

    def train(self) -> Outcome:
        """Run the loop and write down how it ended."""
        config, schedule = self.config, self.config.schedule
        words = (label(config.to_dict()), config.lr, config.seed, self.precision.device)
        logger.info("%s, lr %g, seed %d, on %s", *words)
        learning_rate = WarmupCosine(config.lr, config.steps, schedule.warmup, schedule.min_ratio)
        model: Any = torch.compile(self.model) if config.compile else self.model
        state: State = "finished"
        error = None
        try:
            with self.live:
                train(
                    model,
                    self.optimizer,
                    self.batches.batch,
                    learning_rate,
                    self.plan,
                    self.precision,
                    self.eval_batches,
                    self,
                )
        except Diverged as diverged:
            state, error = "diverged", str(diverged)
            events.append(self.folder, {"event": "diverged", "step": diverged.step, "reason": error})
        except KeyboardInterrupt:
            state, error = "interrupted", f"interrupted after {self.step} of {config.steps} steps"
        except Exception as failure:
            state, error = "failed", f"{type(failure).__name__}: {failure}".splitlines()[0]
            logger.error("%s", traceback.format_exc())
        self._close(state, error)
        return Outcome(state, self.step, error)

    # What the loop reports.

    def updated(self, step: int, loss: float, lr: float, grad_norm: float) -> None:
        self.step = step + 1
        self.losses["train_loss"] = loss
        elapsed_s = time.monotonic() - self.started
        tokens = self.step * self.tokens_a_step
        self.writer.add("train", step, loss=loss, lr=lr, grad_norm=grad_norm, tokens=tokens, elapsed_s=elapsed_s)
        self.live.updated(self.step, loss)
        if self.writer.maybe_flush():
            self._write_status("running")

    def rebalance(self, state: int) -> None:
        settings = self.config.rebalance
        if settings.mode == "off":
            return
        before = self._probe()
        done = rebalance(
            self.parameters,
            self.optimizer,
            self.layout,
            settings.circuits,
            mode=settings.mode,
            target=settings.target,
            state=settings.state,
        )
        change = {
            "output_change": (self._probe() - before).abs().max().item(),
            "output_scale": before.abs().max().item(),
        }
        for circuit in done:
            events.append(self.folder, {"step": state, **circuit.as_event(), **change})
        self.live.say(f"step {state}: {_in_words(done, change['output_change'])}")

    def evaluated(self, state: int, losses: dict[str, float]) -> None:
        for split, loss in losses.items():
            self.writer.add("eval", state, split=split, loss=loss)
        self.losses["val_loss"] = losses["val"]
        self.live.validated(losses["val"])
        logger.info("step %d: train %.4f, val %.4f", state, losses["train"], losses["val"])

    def checkpoint(self, state: int) -> None:
        self.writer.flush()
        checkpoints.save(self.folder, state, weights(self.model), self._state(state))
        events.append(self.folder, {"event": "checkpoint", "step": state})
        self._write_status("running")

    # The rest.

    def _collector(self) -> Collector | None:
        settings = self.config.collect
        if settings.mode == "off":
            return None
        return attach(
            self.optimizer,
            self.parameters,
            self.layout,
            circuits=settings.circuits,
            when=every(settings.every, last=self.config.steps - 1),
            sink=lambda table, step, columns: self.writer.add(table, step, **columns),
        )

    @torch.no_grad()
    def _probe(self) -> Tensor:
        """Logits on one fixed batch, without dropout, to see what a rebalancing changes."""
        was_training = self.model.training
        logits, _ = self.model.eval()(self.eval_batches["val"][0][0])
        self.model.train(was_training)
        return logits

    def _state(self, step: int) -> dict[str, Any]:
        """Beside the weights, all that decides how training goes on."""
        state = {
            "step": step,
            "optimizer": self.optimizer.state_dict(),
            "rng_cpu": torch.get_rng_state(),
            "elapsed_s": time.monotonic() - self.started,
            "threads": torch.get_num_threads(),
        }
        if self.precision.device.type == "cuda":
            state["rng_cuda"] = torch.cuda.get_rng_state()
        if self.collector:
            state["collector"] = self.collector.state_dict()
        return state

    def _write_status(self, state: str, error: str | None = None) -> None:
        elapsed_s = time.monotonic() - self.started
        record.write_status(self.folder, state=state, step=self.step, **self.losses, elapsed_s=elapsed_s, error=error)

    def _close(self, state: State, error: str | None) -> None:
        if self.collector:
            self.collector.detach()
        self.writer.close()
        if state == "diverged":
            # What an accelerator measured before the host noticed. The evaluation of state `step` is of good weights.
            metrics.cut(self.folder, self.step, ["train", "heads", "biases"])
        self._write_status(state, error)
        if error:
            self.live.say(error)
        else:
            losses = ", ".join(f"{name.replace('_loss', '')} {loss:.4f}" for name, loss in self.losses.items() if loss)
            self.live.say(f"finished {self.step} steps in {time.monotonic() - self.started:.0f} s: {losses}")


def _in_words(done: Sequence[Any], output_change: float) -> str:
    if done[0].mode == "state_only":
        return "optimizer state cleared, weights left as they are"
    moved = (
        f"{each.circuit} rebalanced, largest β {_largest(each.beta_before):.3g} → {_largest(each.beta_after):.1g}"
        for each in done
    )
    return f"{'; '.join(moved)}; outputs move by {output_change:.1g}"


def _largest(betas: list[list[float]]) -> float:
    return max(max(row) for row in betas)


def _environment(command: Sequence[str], prepared: Prepared) -> dict[str, Any]:
    device = prepared.device
    facts: dict[str, Any] = {
        "command": list(command),
        "device": str(device),
        "torch_threads": torch.get_num_threads(),
        "data": prepared.corpus.facts,
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    """Send everything that is logged to run.log, with the time."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


@contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """A polite kill ends a run as Ctrl-C does, so that its status says so. Only a main thread can take signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
