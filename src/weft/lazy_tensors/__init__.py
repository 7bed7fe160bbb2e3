"""Queue the operators of imperative code as they are called, and run them as compiled segments."""
