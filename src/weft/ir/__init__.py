"""The Graph: a small immutable language that says what to compute."""
