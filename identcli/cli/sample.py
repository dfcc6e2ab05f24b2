"""`ident sample`: text from a trained run."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from identcli.architecture.errors import UserError


def sample(
    run: Annotated[Path, typer.Argument(help="A run folder with a checkpoint.")],
    prompt: Annotated[str | None, typer.Option("--prompt", help="What the text begins with; else a line end.")] = None,
    length: Annotated[int, typer.Option("--length", min=0, help="Characters to add.")] = 500,
    temperature: Annotated[float, typer.Option("--temperature", min=0, help="0 takes the likeliest.")] = 0.8,
    top_k: Annotated[int | None, typer.Option("--top-k", min=1, help="Only among this many likeliest.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same text.")] = 1337,
) -> None:
    """Write text with the newest checkpoint of a run.

    \b
    Examples:
      ident sample outputs/run1
      ident sample outputs/run1 --prompt "ROMEO:" --length 200
      ident sample outputs/run1 --temperature 0
    """
    from identcli.store import checkpoints, record
    from identcli.store.folder import one_run

    one_run(run)
    newest = checkpoints.latest(run)
    for path, reason in newest.skipped:
        print(f"{path}: skipped: {reason}", file=sys.stderr)
    if newest.path is None:
        raise UserError(f"{run}: no checkpoint to sample from: train with checkpoint.every=… (0 keeps none)")

    import torch

    from identcli.config.schema import parse
    from identcli.data.vocabulary import Vocabulary
    from identcli.models.gpt import GPT, GPTConfig
    from identcli.models.weights import load_weights

    config = parse(record.read_config(run))
    vocabulary = Vocabulary(_characters(run / "vocabulary.json"))
    text = prompt or ("\n" if "\n" in vocabulary.characters else vocabulary.characters[0])
    try:
        tokens = vocabulary.encode(text)[None]
    except UserError as error:
        raise UserError(f"--prompt: {error}") from None
    model = GPT(GPTConfig(vocab_size=len(vocabulary), **config.model.model_dump()))
    tensors = checkpoints.load_tensors(newest.path)
    trained = len(tensors["transformer.wte.weight"]) if "transformer.wte.weight" in tensors else len(vocabulary)
    if trained != len(vocabulary):
        raise UserError(f"{run / 'vocabulary.json'}: has {len(vocabulary)} characters, the checkpoint {trained}")
    load_weights(model, tensors)
    written = model.generate(tokens, length, temperature, top_k, torch.Generator().manual_seed(seed))
    sys.stdout.buffer.write((vocabulary.decode(written[0]) + "\n").encode("utf-8", "replace"))


def _characters(path: Path) -> list[str]:
    try:
        return list(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: the characters of the run can't be read: {error}") from None
