"""The corpora by name: `load({"name": "text", "path": "poems.txt"})`."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from identcli.architecture.errors import UserError
from identcli.data.corpus import Corpus, corpus
from identcli.data.document import Document
from identcli.data.markov import markov
from identcli.data.text import text
from identcli.data.tiny_shakespeare import tiny_shakespeare

CORPORA: dict[str, Callable[..., Document]] = {
    "tiny_shakespeare": tiny_shakespeare,
    "text": text,
    "markov": markov,
}


def load(data: Mapping[str, Any]) -> Corpus:
    """The corpus called `data["name"]`, made with the other entries as arguments; its facts get name and arguments.

    Raises UserError on an unknown name, on arguments that the corpus doesn't take or lacks, and as the corpora do.
    """
    arguments = dict(data)
    name = arguments.pop("name", None)
    if name not in CORPORA:
        near = difflib.get_close_matches(str(name), CORPORA, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Choose one of {', '.join(CORPORA)}"
        raise UserError(f"data={name}: no such corpus. {hint}")
    try:
        inspect.signature(CORPORA[name]).bind(**arguments)
    except TypeError as error:
        raise UserError(f"data={name}: {error}") from None
    loaded = corpus(CORPORA[name](**arguments))
    return Corpus(loaded.tokens, loaded.vocabulary, {"name": name} | arguments | loaded.facts)
