"""How tables and figures call a run: by its resolved settings, never by the name that the user gave it."""

from collections.abc import Mapping
from typing import Any

_SUFFIX = {"off": "", "on": "_rebalanced", "state_only": "_state_only"}


def case_of(config: Mapping[str, Any]) -> str:
    """The case of the paper that a resolved config is an instance of, whatever its learning rate, decay and interval.

    `sgd`, `sgd_decay`, `adamw`, then `_rebalanced` or `_state_only`. A run with momentum is `sgd_momentum`: no case of
    the paper, as its update is no gradient.
    """
    optimizer = config["optimizer"]
    case = optimizer["name"]
    if optimizer.get("momentum"):
        case += "_momentum"
    elif case == "sgd" and optimizer["weight_decay"]:
        case += "_decay"
    return str(case + _SUFFIX[_mode(config)])


def label(config: Mapping[str, Any]) -> str:
    """A label for people, without the learning rate: `AdamW, decay 0.1, rebalanced every 200`."""
    optimizer, rebalance, mode = config["optimizer"], config["rebalance"], _mode(config)
    words = [{"sgd": "SGD", "adamw": "AdamW"}[optimizer["name"]]]
    if optimizer.get("momentum"):
        words.append(f"momentum {optimizer['momentum']:g}")
    if optimizer["weight_decay"]:
        words.append(f"decay {optimizer['weight_decay']:g}")
    if mode == "on":
        target = " with biases" if rebalance["target"] == "augmented" else ""
        words.append(f"rebalanced{target} every {rebalance['every']}")
        if rebalance["state"] == "transport":
            words.append("state transported")
    elif mode == "state_only":
        words.append(f"state cleared every {rebalance['every']}")
    return ", ".join(words)


def _mode(config: Mapping[str, Any]) -> str:
    """Every 0 steps is never."""
    return str(config["rebalance"]["mode"]) if config["rebalance"]["every"] else "off"
