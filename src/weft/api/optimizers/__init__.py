"""The update rules of torch.optim as pure functions of tensors, and what a step is given of an optimizer."""
