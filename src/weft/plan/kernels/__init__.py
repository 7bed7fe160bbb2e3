"""The kernels of a Plan, a description each, and what every one of them must fulfil."""
