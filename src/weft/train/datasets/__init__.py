"""Files of images, or made-up ones -> minibatches in an order that a seed decides."""
