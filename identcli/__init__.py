"""ident: which parameters of attention mean something."""

__version__ = "0.1.0"
