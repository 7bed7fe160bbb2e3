"""A plan without lanes -> tiles given to lanes, in an order, with waits, by what they cost."""
