"""The steps behind scripts/build_glyphs.py: typefaces, drawings, look-alikes, split, files."""
