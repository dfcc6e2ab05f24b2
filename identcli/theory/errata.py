"""docs/ERRATA.md, written from the claims: what the paper prints, why it can't be, what is right, with numbers."""

from collections.abc import Sequence

from identcli.theory.claim import Outcome
from identcli.theory.report import errata

COMMAND = "ident verify lemmas --errata docs/ERRATA.md"

_HEAD = f"""# Errata of the paper

W. Ross Morrow, “Multi-Head Self Attention is a Parameter Identification Mechanism”. Each entry is a claim of `ident`:
the printed form is computed and fails, the corrected form is computed and holds, in float64 on random weights
(seed 0). `ident verify lemmas` reruns them all, with other weights by `--seed`.

This file is written by `{COMMAND}`; don't edit it.
"""

_SLIPS = """## Slips of notation

Read off the text; nothing hangs on them.

- 2: the sequence length is L, not E; and rotary positions leave “D² → D” *un*identified.
- 3.5: V_h(X) is C × L, not E × L.
- 4.2, proof: W_K S⁻¹ S W_Q lacks its transposes: (S⁻ᵀ W_K)ᵀ(S W_Q) = W_Kᵀ S⁻¹ S W_Q.
- 5.2.2: Σ^½ Q_Kᵀ U_Mᵀ doesn't conform; it is Σ^½ U_Mᵀ Q_Kᵀ (claim `qr-svd-form`).
"""


def document(outcomes: Sequence[Outcome]) -> str:
    """The whole file. Numbers have two digits, so that it is the same from every machine."""
    return "\n".join([_HEAD, *errata(outcomes), _SLIPS])
