"""Every lemma at small size: it holds, its counter-example fails, and a broken formula of symmetry/ is noticed."""

import re
import sys
from dataclasses import replace

import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.symmetry import act, project, tangent
from identcli.symmetry.act import Move
from identcli.symmetry.pair import Pair
from identcli.theory.catalogue import lemmas, section_order, select, verify_lemmas
from identcli.theory.claim import Finding, Lemma
from identcli.theory.trial import SMALL

LEMMAS = lemmas()


@pytest.mark.parametrize("lemma", LEMMAS, ids=lambda lemma: lemma.id)
@pytest.mark.parametrize("seed", [0, 1])
def test_holds(lemma: Lemma, seed: int) -> None:
    """On two seeds: what happens to hold once proves little."""
    outcome = lemma.run(SMALL, seed)
    assert outcome.holds, f"{lemma.section} {lemma.id}: {outcome.note} (tolerance {lemma.tolerance}: {lemma.reason})"


def test_counter_examples_are_far_from_passing() -> None:
    """A counter-example that fails by little would pass on another seed: each is ten tolerances off or more."""
    for lemma in LEMMAS:
        outcome = lemma.run(SMALL, 3)
        assert outcome.counter is not None
        assert outcome.predicted is not None
        apart = abs(outcome.counter - outcome.predicted)
        assert apart > max(2 * lemma.tolerance, 1e-9) or lemma.relation != "=", f"{lemma.id}: {outcome}"


def test_ids_are_unique_and_sections_in_the_order_of_the_paper() -> None:
    assert len({lemma.id for lemma in LEMMAS}) == len(LEMMAS)
    sections = [section_order(lemma.section) for lemma in LEMMAS]
    assert sections == sorted(sections)
    every = {
        "4.1",
        "4.2",
        "4.3",
        "4.4",
        "4.5",
        "4.6",
        "4.7.1",
        "4.7.2",
        "4.8.1",
        "4.8.2",
        "4.9",
        "4.10",
        "5.1",
        "5.2.2",
    }
    assert every <= {lemma.section for lemma in LEMMAS}


def test_every_erratum_shows_the_printed_form_failing() -> None:
    found = [lemma.run(SMALL, 0) for lemma in LEMMAS if lemma.erratum]
    assert len(found) == 13
    assert all(outcome.printed is not None and outcome.holds for outcome in found)


def _toy(finding: Finding) -> Lemma:
    return replace(LEMMAS[0], tolerance=0.1, relation="=", test=lambda trial: finding)


@pytest.mark.parametrize(
    ("finding", "note"),
    [
        (Finding(1, 1.2, counter=2), r"measured 1\.2 against = 1"),
        (Finding(1, 1.0, counter=1.05), "counter-example doesn't fail"),
        (Finding(1, 1.0, counter=float("nan")), "counter-example doesn't fail"),
        (Finding(1, 1.0, counter=2, printed=1.0), "printed form doesn't fail"),
        (Finding(1, float("nan"), counter=2), "measured nan"),
    ],
)
def test_a_lemma_that_says_nothing_fails(finding: Finding, note: str) -> None:

    outcome = _toy(finding).run(SMALL)
    assert outcome.holds is False
    assert re.search(note, outcome.note)


def test_an_error_is_a_failure_with_its_reason() -> None:
    def breaks(trial: object) -> Finding:
        raise RuntimeError("no such\nmatrix")

    outcome = replace(LEMMAS[0], test=breaks).run(SMALL)
    assert outcome.holds is False
    assert outcome.note == "can't be computed: no such matrix"


def test_what_is_drawn_depends_on_the_seed_and_not_on_the_selection() -> None:
    alone = verify_lemmas(SMALL, 5, ["general-S"])[0]
    among = next(o for o in verify_lemmas(SMALL, 5, ["4.2"]) if o.claim.id == "general-S")
    other = verify_lemmas(SMALL, 6, ["general-S"])[0]
    assert alone.counter == among.counter
    assert alone.counter != other.counter


def test_sections_and_ids_select() -> None:
    assert {lemma.section for lemma in select(LEMMAS, ["4.7"])} == {"4.7", "4.7.1", "4.7.2"}
    assert [lemma.id for lemma in select(LEMMAS, ["beta-and-tau"])] == ["beta-and-tau"]
    assert select(LEMMAS, ["4.1"])[0].section == "4.1"
    assert all(lemma.section != "4.10" for lemma in select(LEMMAS, ["4.1"]))
    with pytest.raises(UserError, match="bta-and-tau: no such section or claim. Did you mean beta-and-tau?"):
        select(LEMMAS, ["bta-and-tau"])


# Five ways to break a formula of symmetry/. Each must make a lemma fail.


def _sign_of_projection(one: Pair, update: Pair) -> torch.Tensor:
    return _overlap(one, Pair(update.A, -update.B))


def _S_for_its_inverse_transpose(step: Move, one: Pair) -> Pair:
    return _act(Move(step.S, step.S), one)


def _query_bias_left_behind(step: Move, one: Pair) -> Pair:
    return _act(step, one)._replace(a=one.a)


def _missing_transpose(X: torch.Tensor, one: Pair) -> Pair:
    return _tangent(X, one)._replace(B=-X @ one.B)


def _one_S_per_layer(step: Move, one: Pair) -> Pair:
    if step.S.ndim != 4:
        return _act(step, one)
    return _act(Move(*(side[:, :1].expand_as(side) for side in step)), one)


_overlap, _act, _tangent = project._overlap, act.act, tangent.tangent
MUTATIONS = {
    "sign of the projection": (_overlap, _sign_of_projection),
    "S instead of its inverse transpose": (_act, _S_for_its_inverse_transpose),
    "b_Q left behind": (_act, _query_bias_left_behind),
    "missing transpose": (_tangent, _missing_transpose),
    "one S per layer instead of per kv group": (_act, _one_S_per_layer),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_formula_makes_a_lemma_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original, broken = MUTATIONS[name]
    for module in [module for key, module in sys.modules.items() if key.startswith("identcli.")]:
        for attribute, value in list(vars(module).items()):
            if value is original:
                monkeypatch.setattr(module, attribute, broken)
    failing = [lemma.id for lemma in LEMMAS if not lemma.run(SMALL, 0).holds]
    assert failing, f"no lemma notices: {name}"


def test_unbroken_formulas_make_none_fail() -> None:
    """The counterpart: the five above fail for what was broken, not by chance."""
    assert not [lemma.id for lemma in LEMMAS if not lemma.run(SMALL, 0).holds]
