"""Importing this module registers every data set of the package; a new one is a file here and a line below."""

from e3bm.data.sources import cifar100, cub, embedded, folder, mini_imagenet, omniglot, tiered_imagenet

__all__ = ["cifar100", "cub", "embedded", "folder", "mini_imagenet", "omniglot", "tiered_imagenet"]
