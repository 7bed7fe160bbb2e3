"""All that training needs <-> files that are whole or not there, ours and those of others."""
