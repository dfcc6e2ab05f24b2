"""Labels come from the resolved settings."""

import pytest

from identcli.config.label import case_of, label
from identcli.config.preflight import single


@pytest.mark.parametrize(
    ("words", "case", "text"),
    [
        (["case=sgd"], "sgd", "SGD"),
        (["case=sgd_decay"], "sgd_decay", "SGD, decay 0.0004"),
        (["case=adamw"], "adamw", "AdamW, decay 0.1"),
        (["case=adamw_rebalanced"], "adamw_rebalanced", "AdamW, decay 0.1, rebalanced every 200"),
        (["case=adamw_state_only"], "adamw_state_only", "AdamW, decay 0.1, state cleared every 200"),
        # The case that was named says nothing once the settings are others.
        (["case=adamw", "optimizer=sgd", "lr=3"], "sgd", "SGD"),
        (["case=sgd", "optimizer.momentum=0.9"], "sgd_momentum", "SGD, momentum 0.9"),
        (["case=adamw_rebalanced", "rebalance.every=0"], "adamw", "AdamW, decay 0.1"),
        (
            ["case=adamw_rebalanced", "rebalance.target=augmented", "rebalance.state=transport"],
            "adamw_rebalanced",
            "AdamW, decay 0.1, rebalanced with biases every 200, state transported",
        ),
    ],
)
def test_label_and_case(words, case, text):
    config = single(words).config.to_dict()
    assert case_of(config) == case
    assert label(config) == text
