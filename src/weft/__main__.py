"""`python -m weft` -> the command line, as `weft` starts it."""

from weft.console import main

if __name__ == "__main__":
    raise SystemExit(main())
