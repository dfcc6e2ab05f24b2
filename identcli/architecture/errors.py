"""The one exception that means: the user's input is wrong, and here is what to do."""


class UserError(Exception):
    """Bad input. Its text is one line that names the place, the value and the remedy; the command exits with 2."""
