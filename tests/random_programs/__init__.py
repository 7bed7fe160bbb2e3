"""Random imperative programs: generated, run, shrunk."""
