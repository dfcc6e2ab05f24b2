"""The entropy rate that is reported, against other ways to it: eigenvectors, power iteration, the text itself."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from identcli.architecture.errors import UserError
from identcli.data.corpora import load
from identcli.data.markov import ALPHABET, entropy_rate, sample_chain, stationary, transition_matrix


def chain(states: int, concentration: float, seed: int = 0) -> np.ndarray:
    return transition_matrix(states, concentration, np.random.Generator(np.random.Philox(seed)))


@pytest.mark.parametrize(("states", "concentration"), [(2, 0.01), (2, 1.0), (7, 0.05), (16, 0.3), (94, 3.0)])
def test_the_stationary_distribution_and_the_entropy_rate_by_two_other_ways(states, concentration):
    transitions = chain(states, concentration)
    np.testing.assert_allclose(transitions.sum(axis=1), 1, rtol=1e-12)
    assert transitions.min() > 0
    values, vectors = np.linalg.eig(transitions.T)
    leading = np.real(vectors[:, np.argmax(np.real(values))])
    by_eigenvector = leading / leading.sum()
    by_power = np.full(states, 1 / states)
    for _ in range(4000):  # the mixture with the uniform shrinks the error by 0.99 each time: 0.99⁴⁰⁰⁰ = 3e-18
        by_power = by_power @ transitions
    pi = stationary(transitions)
    # Rounding of 1e-16, amplified by the condition of the system, at most about 1/0.01 times its size.
    np.testing.assert_allclose(pi, by_eigenvector, atol=1e-12)
    np.testing.assert_allclose(pi, by_power, atol=1e-12)
    slow = -sum(
        by_power[i] * transitions[i, j] * math.log(transitions[i, j]) for i in range(states) for j in range(states)
    )
    assert entropy_rate(transitions) == pytest.approx(slow, abs=1e-11)
    assert 0 < entropy_rate(transitions) < math.log(states)


def test_known_chains():
    assert entropy_rate(np.full((8, 8), 1 / 8)) == pytest.approx(math.log(8))
    # A coin that stays with 0.9: by symmetry the entropy of one such choice.
    stays = np.array([[0.9, 0.1], [0.1, 0.9]])
    assert entropy_rate(stays) == pytest.approx(-0.9 * math.log(0.9) - 0.1 * math.log(0.1))
    np.testing.assert_allclose(stationary(np.array([[0.5, 0.5], [0.25, 0.75]])), [1 / 3, 2 / 3])


def test_the_text_has_the_reported_entropy_rate():
    corpus = load({"name": "markov", "states": 8, "length": 40_000, "seed": 3, "concentration": 0.5})
    text = corpus.vocabulary.decode(corpus.tokens["train"]) + corpus.vocabulary.decode(corpus.tokens["val"])
    assert len(text) == 40_000
    pairs, firsts = Counter(pairwise(text)), Counter(text[:-1])
    plug_in = -sum(n * math.log(n / firsts[a]) for (a, _), n in pairs.items()) / (len(text) - 1)
    # Standard error: the spread of −ln P, about 1 nat, over √40,000 = 0.005; four of those. The bias of the plug-in
    # estimate, (states² − states)/(2·length) = 0.0007, is far below.
    assert plug_in == pytest.approx(corpus.facts["entropy_rate"], abs=0.02)
    shuffled = -sum(n / len(text) * math.log(n / len(text)) for n in Counter(text).values())
    assert shuffled > corpus.facts["entropy_rate"] + 0.1  # the tolerance can tell the chain from its letters


def test_the_walk_takes_each_step_by_its_probability():
    transitions = np.array([[0.2, 0.8], [0.5, 0.5]])
    start = np.array([0.4, 0.6])
    assert sample_chain(transitions, start, np.array([0.39, 0.19, 0.21, 0.49, 0.99])) == [0, 0, 1, 0, 1]
    assert sample_chain(transitions, start, np.array([0.41, np.nextafter(1, 0)])) == [1, 1]


def test_the_text_is_fixed_by_its_seed_and_printable():
    data = {"name": "markov", "states": 94, "length": 500, "seed": 1}
    corpus = load(data)
    assert corpus.facts["sha256"] == load(data).facts["sha256"]
    assert corpus.facts["sha256"] != load(data | {"seed": 2}).facts["sha256"]
    assert all(c.isprintable() and not c.isspace() for c in corpus.vocabulary.characters)
    assert len(set(ALPHABET)) == len(ALPHABET) == 94


def test_the_vocabulary_has_all_states_even_those_that_never_occur():
    corpus = load({"name": "markov", "states": 50, "length": 10, "seed": 0})
    assert len(corpus.vocabulary) == corpus.facts["vocabulary"] == 50
    assert corpus.vocabulary.characters == sorted(corpus.vocabulary.characters)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"states": 1}, r"data.states=1: must be from 2 to 94"),
        ({"states": 95}, r"data.states=95"),
        ({"length": 0}, r"data.length=0"),
        ({"seed": -1}, r"data.seed=-1"),
        ({"concentration": 0.0}, r"data.concentration=0.0"),
        ({"concentration": math.nan}, r"data.concentration=nan"),
        ({"concentration": math.inf}, r"data.concentration=inf"),
    ],
)
def test_impossible_chains_are_refused(wrong, message):
    with pytest.raises(UserError, match=message):
        load({"name": "markov", "states": 4, "length": 100, "seed": 0} | wrong)
