"""JSON that every reader accepts: what is not a finite number is null, never NaN or Infinity."""

import json
import math
from pathlib import Path
from typing import Any

from identcli.architecture.errors import UserError


def to_text(value: Any, indent: int | None = None) -> str:
    """JSON of dicts, lists, text, numbers, paths, and anything with `tolist` (arrays, tensors); NaN and ±inf → null.

    Raises TypeError for what has no such form.
    """
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. UserError when the file is missing, can't be read or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: can't be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: must hold one JSON object, not {type(value).__name__}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    raise TypeError(f"{type(value).__name__} {value!r} has no JSON form")
