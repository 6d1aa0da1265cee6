"""What lies in a folder: the doctor, and the list of known and prepared data sets."""
