"""`python -m mnemesh_client` is the `mnemesh` command."""

from mnemesh_client.cli.main import main

if __name__ == "__main__":
    main()
