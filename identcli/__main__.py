"""`python -m identcli` is `ident`; torchrun needs a module."""

from identcli.cli.app import main

if __name__ == "__main__":
    main()
