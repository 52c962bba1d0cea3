"""`python -m engram_client` is the `engram` command."""

from engram_client.cli.main import main

if __name__ == "__main__":
    main()
