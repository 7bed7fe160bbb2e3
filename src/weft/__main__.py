"""Start the command line, as `weft` does: `python -m weft`."""

from weft.console import main

if __name__ == "__main__":
    raise SystemExit(main())
