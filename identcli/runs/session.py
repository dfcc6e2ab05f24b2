"""A run in the making: its parts, put together, and what happens to them while the loop goes on."""

import contextlib
import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from identcli.architecture.errors import UserError
from identcli.collectors import Collector, attach, every
from identcli.config.label import label
from identcli.config.schema import RunConfig
from identcli.data.batches import Batches, Split, require_windows
from identcli.data.corpora import load
from identcli.data.corpus import Corpus
from identcli.layouts.nanogpt import nanogpt
from identcli.models.gpt import GPT, GPTConfig
from identcli.models.weights import load_weights, weights
from identcli.runs import loggers
from identcli.runs.interruption import Interruption
from identcli.runs.live import Live
from identcli.store import checkpoints, events, metrics, record
from identcli.training.graph import Captured, require_capturable
from identcli.training.loop import Diverged, Gradient, Plan, train
from identcli.training.memory import keep_freed_memory, rows_at_a_time
from identcli.training.optimizers import build_optimizer
from identcli.training.parallel import Parallel, join, local_device
from identcli.training.precision import Precision, choose_device
from identcli.training.rebalancing import Rebalanced, rebalance
from identcli.training.schedule import WarmupCosine

State = Literal["finished", "failed", "diverged", "interrupted"]

# Beside the weights, what a checkpoint must hold so that training goes on as if it had never stopped.
PARTS = ("step", "optimizer", "rng", "elapsed_s", "threads", "collector")

logger = logging.getLogger("ident")


@dataclass(frozen=True)
class Outcome:
    """How a run ended: `step` updates done, `error` why it did not finish, `exit_code` 0 when it did what was asked."""

    state: State
    step: int
    error: str | None = None
    exit_code: int = 0


@dataclass(frozen=True)
class Prepared:
    """The device, the corpus and the processes: what can be wrong with them is found before any folder is made."""

    device: torch.device
    corpus: Corpus
    parallel: Parallel = field(default_factory=Parallel)


def prepare(config: RunConfig) -> Prepared:
    """Choose the device, load the corpus, and join the other processes if torchrun has started several.

    UserError: device not there, no data, a part shorter than a window, a batch that can't be shared out, a graph where
    none can be, the package of a logger missing.
    """
    loggers.check(config.loggers)
    device = local_device(choose_device(config.device))
    parallel = join(device)
    if config.cuda_graph:
        require_capturable(device, parallel.size)
    if config.batch_size % parallel.size:
        raise UserError(f"batch_size={config.batch_size}: can't be shared out over {parallel.size} processes")
    corpus = parallel.agree(lambda: load(config.data.model_dump()))
    require_windows(corpus.tokens, config.model.block_size)
    return Prepared(device, corpus, parallel)


class Session:
    """Model, optimizer, data, collector and store of one run. Hears what the loop reports (`training.loop.Events`)."""

    def __init__(self, config: RunConfig, folder: Path, prepared: Prepared, *, bar: bool) -> None:
        self.config, self.folder, self.parallel = config, folder, prepared.parallel
        if config.threads:
            torch.set_num_threads(config.threads)
        keep_freed_memory()
        corpus, sizes = prepared.corpus, config.model
        own_rows = config.batch_size // prepared.parallel.size
        widest = max(4 * sizes.n_embd, len(corpus.vocabulary)) * sizes.block_size
        rows = rows_at_a_time(prepared.device, own_rows, widest)
        dtype = getattr(torch, config.dtype)
        # Neither torch's compiler nor its autocast is made for several threads.
        apart = rows is not None and rows < own_rows and dtype is torch.float32 and not config.compile
        self.precision = Precision(prepared.device, dtype, config.tf32, rows, apart)
        self.precision.apply()
        self.batches = Batches(corpus.tokens, sizes.block_size, config.batch_size, config.seed, prepared.device)
        torch.manual_seed(config.seed)
        self.model = GPT(GPTConfig(len(corpus.vocabulary), **sizes.model_dump())).to(prepared.device)
        self.parameters = dict(self.model.named_parameters())
        optimizer = config.optimizer.model_dump()
        self.optimizer = build_optimizer(parameters=self.model.parameters(), lr=config.lr, **optimizer)
        self.layout = nanogpt(self.model.config.attention)
        self.collector = self._collector()
        self.eval_batches = self._eval_batches()
        self.tokens_a_step = config.batch_size * config.grad_accum * sizes.block_size
        self.plan = Plan(
            steps=config.steps,
            grad_accum=config.grad_accum,
            clip=config.clip,
            rebalance_every=0 if config.rebalance.mode == "off" else config.rebalance.every,
            eval_every=config.eval.every,
            checkpoint_every=config.checkpoint.every,
        )
        self.step, self.saved = 0, -1
        self.losses: dict[str, float | None] = {"train_loss": None, "val_loss": None}
        self.began = time.monotonic()
        self._bar = bar

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint. UserError names the part that it lacks."""
        if missing := [part for part in PARTS if part not in state]:
            raise UserError(f"the checkpoint lacks {', '.join(missing)}: it can't be resumed from")
        load_weights(self.model, tensors)
        # Settings come from the config, which may have been changed; what was learned comes from the checkpoint.
        settings = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": settings})
        if self.collector:
            if state["collector"] is None:
                raise UserError("the checkpoint lacks the collector's state: it was written with collect=off")
            self.collector.load_state_dict(state["collector"])
        if not self.config.threads:
            torch.set_num_threads(state["threads"])
        self.step = self.saved = state["step"]
        self.began = time.monotonic() - state["elapsed_s"]
        torch.set_rng_state(state["rng"]["cpu"])
        if "cuda" in state["rng"] and self.precision.device.type == "cuda":
            torch.cuda.set_rng_state(state["rng"]["cuda"])

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def train(self, asked: Interruption) -> Outcome:
        """Run the loop from the state that was reached, and write down how it ended."""
        config, schedule, start = self.config, self.config.schedule, self.step
        words = (label(config.to_dict()), config.lr, config.seed, self.precision.device, start)
        logger.info("%s, lr %g, seed %d, on %s, from step %d", *words)
        learning_rate = WarmupCosine(config.lr, config.steps, schedule.warmup, schedule.min_ratio)
        model: Any = torch.compile(self.model) if config.compile else self.model
        recorder: Callable[[Gradient], Gradient] = Captured if config.cuda_graph else lambda gradient: gradient
        outcome: Outcome
        with self._open(start):
            try:
                reached = train(
                    model,
                    self.optimizer,
                    self.batches.batch,
                    learning_rate,
                    self.plan,
                    self.precision,
                    self.eval_batches,
                    self,
                    start,
                    lambda state: self.parallel.any(asked.asked or state == config.stop_at, self.precision.device),
                    self.parallel,
                    recorder,
                )
                outcome = Outcome("finished", reached) if reached == config.steps else self._stopped(reached, asked)
            except Diverged as diverged:
                outcome = Outcome("diverged", self.step, str(diverged), 1)
            except KeyboardInterrupt:
                outcome = Outcome(
                    "interrupted", self.step, f"interrupted in step {self.step}, without a checkpoint", 130
                )
            except Exception as failure:
                reason = f"{type(failure).__name__}: {failure}".strip().splitlines()[0]
                outcome = Outcome("failed", self.step, reason, 1)
                logger.error("%s", traceback.format_exc())
            return self._close(outcome)

    def _stopped(self, reached: int, asked: Interruption) -> Outcome:
        """Between two steps, by Ctrl-C or by stop_at: the state is whole, so it is kept."""
        if self.saved != reached:
            self.checkpoint(reached)
        if asked.asked:
            return Outcome("interrupted", reached, f"interrupted after {reached} of {self.config.steps} steps", 130)
        return Outcome("interrupted", reached, f"stopped after {reached} of {self.config.steps} steps, by stop_at")

    # What the loop reports.

    def updated(self, step: int, loss: float, lr: float, grad_norm: float) -> None:
        self.step = step + 1
        self.losses["train_loss"] = loss
        tokens = self.step * self.tokens_a_step
        self.writer.add("train", step, loss=loss, lr=lr, grad_norm=grad_norm, tokens=tokens, elapsed_s=self.elapsed_s)
        self.live.updated(self.step, loss)
        self.loggers.log(step, {"train/loss": loss, "train/lr": lr, "train/grad_norm": grad_norm})
        if self.writer.maybe_flush():
            self._write_status("running")

    def rebalance(self, state: int) -> None:
        before = self._probe()
        done = self._move()
        change = {
            "output_change": (self._probe() - before).abs().max().item(),
            "output_scale": before.abs().max().item(),
        }
        for circuit in done:
            events.append(self.folder, {"step": state, **circuit.as_event(), **change})
        self.live.say(f"step {state}: {_in_words(done, change['output_change'])}")

    def _move(self) -> list[Rebalanced]:
        settings = self.config.rebalance
        assert settings.mode != "off", "the plan asks for no rebalancing then"
        return rebalance(
            self.parameters,
            self.optimizer,
            self.layout,
            settings.circuits,
            mode=settings.mode,
            target=settings.target,
            state=settings.state,
        )

    def evaluated(self, state: int, losses: dict[str, float]) -> None:
        for split, loss in losses.items():
            self.writer.add("eval", state, split=split, loss=loss)
        self.losses["val_loss"] = losses["val"]
        self.live.validated(losses["val"])
        self.loggers.log(state, {f"eval/{split}": loss for split, loss in losses.items()})
        logger.info("step %d: train %.4f, val %.4f", state, losses["train"], losses["val"])

    def checkpoint(self, state: int) -> None:
        if self.collector:
            self.collector.flush()
        self.writer.flush()
        checkpoints.save(self.folder, state, weights(self.model), self._state(state))
        self.saved = state
        events.append(self.folder, {"event": "checkpoint", "step": state})
        self._write_status("running")

    # The rest.

    def _open(self, start: int) -> AbstractContextManager[Any]:
        """Get ready to write and to show."""
        self.writer = metrics.MetricWriter(self.folder, elapsed_s=self.elapsed_s)
        self.live = Live(self.folder.name, self.config.steps, self.tokens_a_step, bar=self._bar, start=start)
        self.loggers = loggers.Loggers(self.config.loggers, self.folder, self.config.to_dict())
        self._write_status("running")
        return self.live

    def _eval_batches(self) -> dict[str, list[tuple[Tensor, Tensor]]]:
        splits: tuple[Split, ...] = ("train", "val")
        return {split: list(self.batches.eval_batches(split, self.config.eval.batches)) for split in splits}

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
            sink=self._measured,
        )

    def _measured(self, table: str, step: int, columns: dict[str, Any]) -> None:
        self.writer.add(table, step, **columns)
        if table == "heads":
            rho, beta = np.median([columns["rho"], columns["beta"]], axis=1).tolist()
            self.loggers.log(step, {f"{columns['circuit']}/rho": rho, f"{columns['circuit']}/beta": beta})
            if columns["circuit"] == "qk":
                self.live.measured({"ρ": rho, "β": beta})

    @torch.no_grad()
    def _probe(self) -> Tensor:
        """Logits on one fixed batch, without dropout, to see what a rebalancing changes."""
        was_training = self.model.training
        logits, _ = self.model.eval()(self.eval_batches["val"][0][0])
        self.model.train(was_training)
        return logits

    def _state(self, step: int) -> dict[str, Any]:
        """The PARTS of a checkpoint."""
        rng = {"cpu": torch.get_rng_state()}
        if self.precision.device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state()
        return {
            "step": step,
            "optimizer": self.optimizer.state_dict(),
            "rng": rng,
            "elapsed_s": self.elapsed_s,
            "threads": torch.get_num_threads(),
            "collector": self.collector.state_dict() if self.collector else None,
        }

    def _write_status(self, state: str, error: str | None = None) -> None:
        record.write_status(
            self.folder,
            state=state,
            step=self.step,
            steps=self.config.steps,
            **self.losses,
            elapsed_s=self.elapsed_s,
            error=error,
        )

    def _close(self, outcome: Outcome) -> Outcome:
        """Write what is left and how it ended; where the disk takes no more, the run has failed."""
        try:
            with contextlib.closing(self.writer):
                if self.collector:
                    self.collector.detach()
            if outcome.state == "diverged":
                events.append(self.folder, {"event": "diverged", "step": outcome.step, "reason": outcome.error})
                # What an accelerator measured before the host noticed. The evaluation of state `step` is of good ones.
                metrics.cut(self.folder, self.step, ["train", "heads", "biases"])
        except (OSError, RuntimeError) as failure:  # of the disk, or of what was still being measured
            logger.error("%s", traceback.format_exc())
            outcome = Outcome("failed", self.step, outcome.error or f"{type(failure).__name__}: {failure}", 1)
        try:
            self._write_status(outcome.state, outcome.error)
        except OSError as failure:
            self.live.say(f"status.json can't be written: {failure}")
            outcome = Outcome("failed", self.step, outcome.error or f"{type(failure).__name__}: {failure}", 1)
        losses = [f"{name.replace('_loss', '')} {loss:.4f}" for name, loss in self.losses.items() if loss is not None]
        ended = outcome.error or f"finished {self.step} steps in {self.elapsed_s:.0f} s: {', '.join(losses)}"
        self.live.say(ended)
        self.loggers.close()
        return outcome


def begin(config: RunConfig, folder: Path, command: Sequence[str], prepared: Prepared) -> None:
    """Write down what is going to run, and on what, before step 0."""
    plain = config.to_dict()
    record.write_config(folder, plain)
    record.write_environment(folder, environment(command, prepared))
    record.write_vocabulary(folder, prepared.corpus.vocabulary.to_list())
    record.write_status(folder, state="running", step=0, steps=config.steps, config_hash=record.config_hash(plain))


def environment(command: Sequence[str], prepared: Prepared) -> dict[str, Any]:
    """What environment.json says beside the machine and the versions."""
    device = prepared.device
    facts: dict[str, Any] = {
        "command": list(command),
        "device": str(device),
        "processes": prepared.parallel.size,
        "torch_threads": torch.get_num_threads(),
        "data": prepared.corpus.facts,
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts


def _in_words(done: Sequence[Rebalanced], output_change: float) -> str:
    if done[0].mode == "state_only":
        return "optimizer state cleared, weights left as they are"
    moved = (
        f"{each.circuit} rebalanced, largest β {_largest(each.beta_before):.3g} → {_largest(each.beta_after):.1g}"
        for each in done
    )
    return f"{'; '.join(moved)}; outputs move by {output_change:.1g}"


def _largest(betas: list[list[float]]) -> float:
    return max(max(row) for row in betas)
