"""`ident count`: how many parameters of an architecture are identified, and why the others are not."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from identcli.architecture.errors import UserError

if TYPE_CHECKING:
    from identcli.architecture.count import Count
    from identcli.architecture.description import Architecture
    from identcli.theory.twin_check import TwinCheck


def count(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="A built-in name, a config.json, a checkpoint or a run, or key=value of a config of ours.",
        ),
    ] = None,
    families: Annotated[
        str | None, typer.Option("--families", help="Only these families: qk,ov is the paper's own count.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Hold the closed form against the numerical rank of a small twin.")
    ] = False,
    equivalent: Annotated[
        bool, typer.Option("--equivalent", help="The single-head model that identifies as many (the paper's 4.10).")
    ] = False,
    outputs: Annotated[
        str, typer.Option("--outputs", metavar="log-probs|logits", help="What counts as the same output.")
    ] = "log-probs",
    epsilon: Annotated[
        str,
        typer.Option("--epsilon", metavar="positive|zero", help="The ε in the norms; at zero more scales are free."),
    ] = "positive",
    assume: Annotated[
        str | None, typer.Option("--assume", metavar="KEY,…", help="Use the class default of keys a config leaves out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as data.")] = False,
    show_list: Annotated[bool, typer.Option("--list", help="The built-in models.")] = False,
) -> int:
    """How many parameters of a model are identified, which families of transformations leave it the same, and why.

    Several models give a comparison. Exit status 1 when --check finds another number.

    \b
    Examples:
      ident count gpt2
      ident count llama-2-70b-hf --families qk,ov
      ident count gpt2 Qwen/Qwen3-8B deepseek-v3
      ident count path/to/config.json --assume vocab_size
      ident count path/to/checkpoint --check
      ident count scale=paper model.bias=false --equivalent
      ident count --list
    """
    if show_list:
        _list(as_json)
        return 0
    if not models:
        raise UserError("which model? Name one of ident count --list, a config.json, a checkpoint, or key=value")
    if outputs not in ("log-probs", "logits"):
        raise UserError(f"--outputs {outputs}: must be log-probs or logits")
    if epsilon not in ("positive", "zero"):
        raise UserError(f"--epsilon {epsilon}: must be positive or zero")
    kind = cast("Literal['log_probs', 'logits']", outputs.replace("-", "_"))

    from identcli.architecture.count import count as counted
    from identcli.architecture.equivalence import equivalent as single_head

    only = _words(families)
    found = [counted(a, kind, epsilon == "positive", only) for a in _architectures(models, _words(assume))]
    singles = [single_head(one.architecture) for one in found] if equivalent else []
    checks = [_checked(one) if check else None for one in found]
    if as_json:
        answers = [one.as_data() for one in found]
        for answer, done in zip(answers, checks, strict=True):
            answer |= {"check": done.as_data()} if done else {}
        for answer, single in zip(answers, singles, strict=False):
            answer["equivalent"] = single.as_data()
        typer.echo(json.dumps(answers, indent=2))
    else:
        from identcli.cli import count_table

        count_table.show(found, checks, singles)
    wrong = [done for done in checks if done and not done.holds]
    for done in wrong:
        print(f"error: {done.complaint}", file=sys.stderr)
    return 1 if wrong else 0


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _list(as_json: bool) -> None:
    from identcli.architecture.builtin import entries, find
    from identcli.architecture.tensors import parameters

    rows = []
    for entry in entries():
        architecture = find(entry["hf_id"])
        assert architecture is not None
        rows.append((entry, parameters(architecture).total))
    if as_json:
        keys = ("name", "hf_id", "model_type", "source")
        data = [{**{key: entry[key] for key in keys}, "parameters": total} for entry, total in rows]
        typer.echo(json.dumps(data, indent=2))
        return
    from identcli.cli import count_table

    count_table.show_list(
        [(entry["hf_id"].split()[0], entry["name"], entry["model_type"], total) for entry, total in rows]
    )


def _architectures(models: Sequence[str], assume: list[str]) -> "list[Architecture]":
    """One for each name or path, and one for all key=value together, in the place of the first."""
    words = [model for model in models if "=" in model and not Path(model).exists()]
    found = []
    for model in models:
        if model not in words:
            found.append(_named(model, assume))
        elif model == words[0]:
            found.append(_own(words))
    return found


def _named(model: str, assume: list[str]) -> "Architecture":
    from identcli.architecture import builtin
    from identcli.architecture.huggingface import read_config

    path = Path(model)
    if path.is_file() and path.suffix == ".json" and not path.name.endswith(".index.json"):
        return read_config(path, assume)
    if path.exists():
        return _folder(path, assume)
    known = builtin.find(model)
    if known is not None:
        return known
    near = builtin.near(model)
    hint = f"Did you mean {' or '.join(near)}?" if near else "ident count --list names the built-in ones"
    raise UserError(f"{model}: no file, no folder and no built-in model. {hint}")


def _folder(path: Path, assume: list[str]) -> "Architecture":
    """A checkpoint, or a folder that has only a config."""
    from identcli.architecture.huggingface import read_config
    from identcli.store import checkpoints, folder, record

    if folder.is_run(path) and checkpoints.latest(path).path is None:
        from identcli.config.schema import parse

        return _gpt(str(path), parse(record.read_config(path)))
    if path.is_dir() and not any(path.glob("*.safetensors*")) and not any(path.glob("*.bin")):
        config = path / "config.json"
        if config.is_file():
            return read_config(config, assume)

    from identcli.checkpoints.count import described

    return described(path, assume)


def _own(words: list[str]) -> "Architecture":
    from identcli.config.preflight import single

    return _gpt(" ".join(words), single(words).config)


if TYPE_CHECKING:
    from identcli.config.schema import RunConfig


def _gpt(name: str, config: "RunConfig") -> "Architecture":
    from identcli.architecture.gpt import gpt

    data, model = config.data, config.model
    if data.name == "tiny_shakespeare":
        vocab = 65  # fixed by the SHA-256 of its text
    elif data.name == "markov":
        vocab = data.states
    else:
        from identcli.data.corpora import load

        vocab = len(load(config.to_dict()["data"]).vocabulary)
    return gpt(name, model.n_layer, model.n_head, model.n_embd, model.block_size, vocab, model.bias)


def _checked(counted: "Count") -> "TwinCheck":
    from identcli.theory.twin_check import check

    return check(counted.architecture, counted.outputs, counted.eps)
