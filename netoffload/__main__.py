"""``python -m netoffload`` is the same as ``netoffload``."""

from netoffload.cli import main

if __name__ == "__main__":
    main()
