"""A text whose entropy rate is known: a Markov chain over a few characters, drawn from a seed.

A model of context 1 can reach the entropy rate and no model can beat it, so a loss can be told from its optimum.
"""

import string
from bisect import bisect_right
from itertools import accumulate

import numpy as np

from identcli.architecture.errors import UserError
from identcli.data.document import Document

ALPHABET = string.ascii_lowercase + string.ascii_uppercase + string.digits + string.punctuation
UNIFORM_SHARE = 0.01


def markov(states: int, length: int, seed: int, concentration: float = 0.3) -> Document:
    """`length` characters of a stationary order-1 chain over `states` characters.

    The facts hold entropy_rate h = −Σ_i π_i Σ_j P_ij ln P_ij in nats per character, π the stationary distribution.
    A small `concentration` makes a few successors likely (h near 0), a large one all alike (h near ln states).
    """
    if not 2 <= states <= len(ALPHABET):
        raise UserError(f"data.states={states}: must be from 2 to {len(ALPHABET)}")
    if length < 1:
        raise UserError(f"data.length={length}: must be at least 1")
    if seed < 0:
        raise UserError(f"data.seed={seed}: must be at least 0")
    if not 0 < concentration < np.inf:
        raise UserError(f"data.concentration={concentration}: must be a number above 0")
    rng = np.random.Generator(np.random.Philox(seed))
    transitions = transition_matrix(states, concentration, rng)
    characters = sorted(ALPHABET[:states])
    walk = sample_chain(transitions, stationary(transitions), rng.random(length))
    return Document(
        "".join([characters[state] for state in walk]).encode(),
        {"source": "generated", "notes": [], "entropy_rate": entropy_rate(transitions)},
        characters,
    )


def transition_matrix(states: int, concentration: float, rng: np.random.Generator) -> np.ndarray:
    """P (states, states): rows from a symmetric Dirichlet distribution, mixed with 1 % of the uniform one.

    The mixture makes every transition possible: one stationary distribution, forgotten at least at the rate 0.99ⁿ.
    """
    rows = rng.dirichlet(np.full(states, concentration), size=states)
    return (1 - UNIFORM_SHARE) * rows + UNIFORM_SHARE / states


def stationary(transitions: np.ndarray) -> np.ndarray:
    """π with π P = π and Σ π = 1, from one linear system: (I − P + 𝟙𝟙ᵀ)ᵀ π = 𝟙."""
    ones = np.ones(len(transitions))
    return np.linalg.solve((np.eye(len(ones)) - transitions + 1.0).T, ones)


def entropy_rate(transitions: np.ndarray) -> float:
    """−Σ_i π_i Σ_j P_ij ln P_ij, in nats."""
    return float(-stationary(transitions) @ (transitions * np.log(transitions)).sum(axis=1))


def sample_chain(transitions: np.ndarray, start: np.ndarray, uniforms: np.ndarray) -> list[int]:
    """One state for each of the `uniforms` in [0, 1): the first from `start`, each later one from its row of P."""
    last = len(start) - 1
    rows = [list(accumulate(row))[:last] for row in transitions.tolist()]  # without the last sum, 1 up to rounding
    state = bisect_right(list(accumulate(start.tolist()))[:last], uniforms[0])
    walk = [state]
    for uniform in uniforms[1:].tolist():
        state = bisect_right(rows[state], uniform)
        walk.append(state)
    return walk
