"""`python -m mnemesh_cli` is the `mnemesh` command."""

from mnemesh_cli.main import main

if __name__ == "__main__":
    main()
