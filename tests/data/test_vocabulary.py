import json

import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.data.vocabulary import Vocabulary

TEXT = "é李😀 a\r\nb\na"


def test_characters_are_distinct_and_sorted_by_code_point():
    assert Vocabulary.of(TEXT).characters == sorted(set(TEXT)) == list("\n\r abé李😀")


def test_encoding_and_back():
    vocabulary = Vocabulary.of(TEXT)
    ids = vocabulary.encode(TEXT)
    assert ids.dtype == torch.int64
    assert ids.tolist() == [vocabulary.characters.index(character) for character in TEXT]
    assert vocabulary.decode(ids) == vocabulary.decode(ids.tolist()) == TEXT
    assert vocabulary.encode("").shape == (0,)


def test_json_and_back_keeps_ids_even_of_an_unsorted_list():
    for vocabulary in (Vocabulary.of(TEXT), Vocabulary(["b", "a", "李"])):
        again = Vocabulary(json.loads(json.dumps(vocabulary.to_list())))
        assert again == vocabulary
        assert again.encode("ba").tolist() == vocabulary.encode("ba").tolist()
    assert Vocabulary(["b", "a"]) != Vocabulary(["a", "b"])
    assert Vocabulary(["b", "a"]).encode("ab").tolist() == [1, 0]


def test_unknown_characters_are_listed_with_code_points_and_places():
    vocabulary = Vocabulary.of("abc")
    with pytest.raises(UserError, match=r"has 1 character outside the vocabulary of 3: 'é' \(U\+00E9\) at 2 "):
        vocabulary.encode("abéc")
    with pytest.raises(UserError) as error:
        vocabulary.encode("李a" * 5 + "😀")
    assert str(error.value) == (
        "the text has 6 characters outside the vocabulary of 3: '李' (U+674E) at 0, 2, 4 and 2 more; "
        "'😀' (U+1F600) at 10 (places count from 0)"
    )
    with pytest.raises(UserError, match=r"has 9 characters.*'h' \(U\+0068\) at 4; and 4 other characters"):
        vocabulary.encode("defghijkl")


def test_the_complaint_is_one_printable_line_for_line_ends_and_lone_surrogates():
    with pytest.raises(UserError, match=r"'\\n' \(U\+000A\) at 0; '\\udce9' \(U\+DCE9\) at 1") as error:
        Vocabulary.of("abc").encode("\n\udce9")
    assert str(error.value).isprintable()


def test_ids_outside_are_refused():
    with pytest.raises(UserError, match=r"token 3 is outside the vocabulary of 3 characters"):
        Vocabulary.of("abc").decode([0, 3])
    with pytest.raises(UserError, match=r"token -1"):
        Vocabulary.of("abc").decode(torch.tensor([-1]))


@pytest.mark.parametrize(
    ("characters", "message"),
    [([], "at least one"), (["a", "a"], "none of them twice"), (["ab"], "'ab'"), ([7], "not of 7")],
)
def test_impossible_vocabularies_are_refused(characters, message):
    with pytest.raises(UserError, match=message):
        Vocabulary(characters)
