"""A model, data and devices -> a trained model, and files from which training goes on."""
