"""Arrays that are computed in the background, their operators and their gradients: `mx.nd` and `mx.autograd`."""
