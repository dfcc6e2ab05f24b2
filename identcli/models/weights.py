"""The weights of a GPT as named tensors, under nanoGPT's names: out of a model, and into one."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from identcli.architecture.errors import UserError

TIED = ("transformer.wte.weight", "lm_head.weight")
WRAPPERS = ("_orig_mod.", "module.")  # what torch.compile and DistributedDataParallel put before every name


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Every name of nanoGPT's state_dict, each with memory of its own: nanoGPT loads it as it stands.

    The tensors are the model's own, detached and not copied, except for the head: it is tied to the token
    embedding, and a safetensors file holds no two names for one memory, so `lm_head.weight` is a copy.
    """
    named = {_plain(name): tensor.detach() for name, tensor in model.state_dict().items()}
    embedding, head = TIED
    if named[embedding].data_ptr() == named[head].data_ptr():
        named[head] = named[head].clone()
    return named


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy `tensors` into the model, or leave it as it was and raise a UserError that says what doesn't fit.

    Wrappers' prefixes are taken off the names, and the causal masks that old checkpoints hold ([1, 1, T, T],
    named `….attn.bias`) are passed over. Of the tied embedding and head one is enough; if both are there they
    must be equal. Values are converted to the dtype and device of the model.
    """
    given = {_plain(name): tensor for name, tensor in tensors.items() if not _is_mask(name, tensor)}
    embedding, head = TIED
    for name, tied in ((embedding, head), (head, embedding)):
        if tied in given:
            given.setdefault(name, given[tied])
    own = {_plain(name): tensor for name, tensor in model.state_dict().items()}
    faults = _differences(own, given)
    if not faults and not torch.equal(given[embedding], given[head]):
        faults = [f"{embedding} and {head} are tied in the model but differ"]
    if faults:
        raise UserError("the weights don't fit the model: " + "; ".join(faults))
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(given[name])


def _differences(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> list[str]:
    """What keeps `given` from filling `own`: missing names, names that the model lacks, other shapes."""
    faults = []
    if missing := [name for name in own if name not in given]:
        faults.append(f"missing {_some(missing)}")
    if unexpected := [name for name in given if name not in own]:
        faults.append(f"not in the model {_some(unexpected)}")
    shapes = [
        f"{name} is {list(given[name].shape)}, the model has {list(tensor.shape)}"
        for name, tensor in own.items()
        if name in given and given[name].shape != tensor.shape
    ]
    return faults + ([_some(shapes)] if shapes else [])


def _some(items: list[str], shown: int = 3) -> str:
    rest = len(items) - shown
    return ", ".join(items[:shown]) + (f" and {rest} more" if rest > 0 else "")


def _plain(name: str) -> str:
    while name.startswith(WRAPPERS):
        name = name.split(".", 1)[1]
    return name


def _is_mask(name: str, tensor: Tensor) -> bool:
    return name.endswith(".attn.bias") and tensor.ndim == 4
