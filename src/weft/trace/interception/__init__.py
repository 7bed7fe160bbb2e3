"""Intercept PyTorch's operators, functions and modes, and refuse what cannot be followed, with the user's line."""
