"""Import all that a run of the models in these tests imports, without the garbage collector: nothing of it is
garbage, and collections among it take a quarter of the time."""

import gc
from importlib import import_module

gc.disable()
for _module in ("harness.run", "torch._dynamo", "tests.numbers_source", "tests.warm_start"):
    import_module(_module)
gc.enable()
