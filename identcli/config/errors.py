"""All that is wrong with a config, told at once."""

from collections.abc import Iterable

from identcli.architecture.errors import UserError


class ConfigErrors(UserError):
    """Bad config: `messages` holds one line for each error, none twice, in the order in which they were found."""

    def __init__(self, messages: Iterable[str]) -> None:
        self.messages = list(dict.fromkeys(messages))
        super().__init__("\n".join(self.messages))
