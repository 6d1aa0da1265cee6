"""The data sets of the field: importing this package registers them; a new one is a file here and a line below."""

from e3bm.data.sources import cifar100, cub, folder, glyphs, mini_imagenet, omniglot, tiered_imagenet

__all__ = ["cifar100", "cub", "folder", "glyphs", "mini_imagenet", "omniglot", "tiered_imagenet"]
