"""What training needs besides networks: first weights, rules of update, rates, measures, stores of keys."""
