"""What is there, and how it is: this machine, its devices, a model, a program, each as a result to print or to keep."""
