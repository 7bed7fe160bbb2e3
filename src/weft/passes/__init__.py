"""Graph to Graph: each pass makes a program smaller and leaves what it computes bit for bit the same."""
