"""Work that can be stopped, because it is done in processes of its own: photos, fits, model files."""
