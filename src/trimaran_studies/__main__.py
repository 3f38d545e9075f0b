"""`python -m trimaran_studies`: predictions against published measurements, and the papers' experiments."""

from trimaran.__main__ import main

if __name__ == "__main__":
    main("trimaran_studies.cli")
