"""What the README says of the house and of the library is so."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tree_names_every_file_once():
    tree = README.split("## The house")[1].split("```")[1]
    told, room = [], ""
    for line in tree.splitlines():
        if match := re.match(r"  (\w+/) ", line):
            room = match[1]
        elif match := re.match(r"    (\S+\.py) +\S", line):
            told.append(room + match[1])
    there = {
        path.relative_to(ROOT / "identcli").as_posix()
        for path in (ROOT / "identcli").rglob("*.py")
        if path.name != "__init__.py" and len(path.relative_to(ROOT / "identcli").parts) > 1
    }
    assert len(told) == len(set(told))
    assert set(told) == there


def test_the_example_runs_as_it_stands():
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert example is not None
    names: dict = {}
    exec(compile(example[1], "README.md", "exec"), names)
    assert len(names["heads"]["rho"]) == 2 * 2 * 4  # steps 0 and 10, two layers, four heads
    assert (names["heads"]["rho"] > 0).all()


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target
