"""`python -m trimaran` is the `trimaran` command."""

from trimaran.cli import main

if __name__ == "__main__":
    main()
