"""The published scores of Fig. 1, and what they show."""

from identcli.architecture.published import series, source


def test_the_numbers_and_their_source() -> None:
    assert "2002.07028" in source()["source"]
    found = series()
    assert [len(one.models) for one in found] == [3, 4, 4, 4]
    large = found[0].models
    assert [(m.attention.heads, m.parameters_m, m.squad_f1, m.mnli) for m in large] == [
        (8, 336, 90.89, 85.0),
        (16, 336, 90.61, 84.5),
        (32, 336, 90.45, 84.4),
    ]


def test_shares_are_the_papers() -> None:
    for one in series():
        for model in one.models:
            a = model.attention
            assert abs(model.share - (1 - a.qk_size / (2 * a.embedding))) < 1e-15


def test_in_the_first_series_the_identified_count_rises_while_both_scores_fall() -> None:
    models = series()[0].models
    assert models[0].identified < models[1].identified < models[2].identified
    assert models[0].squad_f1 > models[1].squad_f1 > models[2].squad_f1
    assert models[0].mnli > models[2].mnli
