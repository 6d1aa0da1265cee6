"""From files and archives, read in place, to a packed data set."""
