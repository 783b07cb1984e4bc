"""Run a module as on a machine that lacks some packages.

    python bare_machine.py PACKAGE,PACKAGE,... MODULE [ARGUMENT...]

Importing one of the packages, or a part of it, fails as if it were not installed.
"""

import runpy
import sys
from typing import Any


class Missing:
    def __init__(self, packages: set[str]) -> None:
        self.packages = packages

    def find_spec(self, name: str, *_: Any) -> None:
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


if __name__ == "__main__":
    _, packages, module, *arguments = sys.argv
    sys.meta_path.insert(0, Missing(set(packages.split(","))))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
