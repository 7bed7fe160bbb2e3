"""The kernels of a plan -> LLVM functions, a file a kind, and the loops and blocks they share."""
