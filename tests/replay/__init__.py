"""Record the texts of many programs by digest, and compare a later checkout with them."""
