"""docs/ERRATA.md is what the claims say."""

from pathlib import Path

from identcli.theory.catalogue import verify_lemmas
from identcli.theory.errata import COMMAND, document
from identcli.theory.trial import LARGE

FILE = Path(__file__).parents[2] / "docs" / "ERRATA.md"


def test_the_file_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == document(verify_lemmas(LARGE, 0)), f"write it anew: {COMMAND}"


def test_every_settled_erratum_is_there() -> None:
    text = FILE.read_text(encoding="utf-8")
    for part in ("91.67", "min_S", "Σ̄_O⁻¹ S", "1,048,576", "names are exchanged", "remainder", "non-increasing"):
        assert part in text
    for part in ("sinks", "rotary positions", "b_Q b_Qᵀ", "94–99 %", "not a bound"):
        assert part in text
