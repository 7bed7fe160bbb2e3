"""Documents: headings, tables and pictures in one form, shown as lines of text or as HTML."""
