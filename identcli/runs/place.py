"""Where a run or a sweep goes: outputs/ in the working folder, unless the user names a folder."""

from pathlib import Path

from identcli.architecture.errors import UserError
from identcli.store.folder import claim

OUTPUTS = Path("outputs")


def place(chosen: Path | None, name: str | None, prefix: str) -> Path:
    """A folder that belongs to this process alone. UserError when the chosen one holds anything already."""
    if chosen is None:
        return claim(OUTPUTS, name, prefix)
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        if any(chosen.iterdir()):
            raise UserError(f"{chosen} exists already: choose another folder")
    except OSError as error:
        raise UserError(f"{chosen}: can't be made: {error.strerror}") from None
    return chosen
