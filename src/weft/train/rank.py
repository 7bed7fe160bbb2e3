"""`python -m weft.train.rank PARENT ...` -> `weft.train.worker ...`, in a process that ends when its parent does.

PyTorch takes seconds to import. A process that loses its parent meanwhile is adopted by another, and would not know.
"""

from __future__ import annotations

import runpy
import sys

from weft.train.processes.parent import end_with_parent

if __name__ == "__main__":
    end_with_parent(int(sys.argv.pop(1)))
    runpy.run_module("weft.train.worker", run_name="__main__", alter_sys=True)
