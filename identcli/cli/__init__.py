"""The words a user types. Nothing heavy is imported at start."""

from identcli.runs.process import spare_the_collector

spare_the_collector()  # here, since importing typer is most of what `ident --help` does
