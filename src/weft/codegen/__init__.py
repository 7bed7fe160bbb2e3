"""Turn the plans of native code into machine code, and plans of PyTorch's operators into functions of Python."""
