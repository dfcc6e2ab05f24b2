"""A corpus: the tokens to train and to validate on, their vocabulary, and what is known about them."""

import hashlib
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from identcli.data.document import Document, decode, line_endings
from identcli.data.vocabulary import Vocabulary

TRAIN_SHARE = 0.9


@dataclass(frozen=True)
class Corpus:
    """`tokens["train"]` and `tokens["val"]`, int64 ids (N,) in reading order on the CPU.

    `facts` (fit for JSON): sha256 and bytes of the document, characters, vocabulary (size), train and val (tokens),
    line_endings (counts of crlf, cr, lf), byte_order_mark, entropy_rate (nats per character, None when unknown), and
    what the source adds: source, path, notes …
    """

    tokens: dict[str, Tensor]
    vocabulary: Vocabulary
    facts: dict[str, Any]


def corpus(document: Document) -> Corpus:
    """One token a character; the first int(0.9·N) of N characters are for training, the rest for validation.

    Bytes are kept as they are: line ends aren't folded and a byte-order mark stays, each a character like others.
    Raises UserError on invalid UTF-8, with the byte offset.
    """
    text = decode(document.data)
    vocabulary = Vocabulary(document.characters) if document.characters else Vocabulary.of(text)
    ids = vocabulary.encode(text)
    cut = int(TRAIN_SHARE * len(ids))
    tokens = {"train": ids[:cut], "val": ids[cut:]}
    facts = {
        "sha256": hashlib.sha256(document.data).hexdigest(),
        "bytes": len(document.data),
        "characters": len(ids),
        "vocabulary": len(vocabulary),
        "train": len(tokens["train"]),
        "val": len(tokens["val"]),
        "line_endings": line_endings(document.data),
        "byte_order_mark": text.startswith("\ufeff"),
        "entropy_rate": None,
    }
    return Corpus(tokens, vocabulary, facts | dict(document.facts))
