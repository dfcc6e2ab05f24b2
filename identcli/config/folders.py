"""Where the YAML files are."""

from pathlib import Path


def conf_dir() -> Path:
    """The folder of the YAML files: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return next((place for place in (package / "conf", package.parent / "conf") if place.is_dir()), package / "conf")
