"""Change one place of `src` at a time and see whether a test fails: `python -m tests.mutants AREA N SEED`."""
