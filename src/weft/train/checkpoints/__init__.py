"""Write all that training needs to files that are whole or not there, and read such files, also those of others."""
