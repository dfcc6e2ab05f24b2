"""Groups: their dimension is that of the matrices that commute with all rotations, found numerically."""

import pytest

from cases import GROUPS
from identcli.architecture.errors import UserError
from identcli.architecture.groups import Group, RotaryStyle
from slow_symmetry import commutant


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize(
    ("size", "rotary", "dimension"),
    [(1, 0, 1), (4, 0, 16), (2, 2, 2), (4, 4, 4), (6, 6, 6), (4, 2, 6), (6, 4, 8), (6, 2, 18), (5, 2, 11)],
)
def test_the_dimension_is_that_of_the_commutant(size: int, rotary: int, dimension: int, style: RotaryStyle) -> None:
    group = Group(size, rotary, style)
    assert group.dimension == len(commutant(group)) == dimension
    assert group.plain == size - rotary


def test_rows_turn_in_pairs_as_each_style_has_them() -> None:
    assert GROUPS["none"].pairs == ()
    assert GROUPS["half"].pairs == ((0, 3), (1, 4), (2, 5))
    assert GROUPS["interleaved"].pairs == ((0, 1), (2, 3), (4, 5))
    # Half a rotary width apart, not half a head.
    assert GROUPS["partial"].pairs == ((0, 2), (1, 3))
    assert Group(6, 4, "interleaved").pairs == ((0, 1), (2, 3))


def test_groups_say_what_they_are() -> None:
    assert str(Group(64)) == "GL(64)"
    assert str(Group(64, 64)) == "32 scaled rotations"
    assert str(Group(64, 16)) == "8 scaled rotations x GL(48)"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), r"head size 0: must be at least 1"),
        ((4, -2), r"rotary size -2: must lie between 0 and the head size 4"),
        ((4, 6), r"rotary size 6: must lie between 0 and the head size 4"),
        ((4, 3), r"rotary size 3: must be even"),
        ((4, 4, "neox"), r"rotary style 'neox': must be 'half' or 'interleaved'"),
    ],
)
def test_contradictory_groups_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Group(*arguments)
