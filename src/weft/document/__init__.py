"""Show headings, tables and pictures, in one form, as lines of text or as HTML."""
