"""Shape annotations are checked in tests; every test runs on one thread."""

from jaxtyping import install_import_hook

# Before anything of the package is imported.
install_import_hook(["e3bm.core", "e3bm.methods", "e3bm.backbones", "e3bm.episode"], "beartype.beartype")

import torch  # noqa: E402

torch.set_num_threads(1)
