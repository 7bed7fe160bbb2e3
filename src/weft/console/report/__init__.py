"""Report what is there and how it is (this machine, its devices, a model, a program) to print or to keep."""
