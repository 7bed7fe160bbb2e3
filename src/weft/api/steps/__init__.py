"""A whole training step as one program: its state, its optimizers and its calls."""
