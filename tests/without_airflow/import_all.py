"""Import every module of the packages named on the command line; print how many there were."""

from __future__ import annotations

import importlib
import pkgutil
import sys


def modules_of(package_name: str) -> list[str]:
    """The package and all modules below it, but for those that run when they are imported."""
    package = importlib.import_module(package_name)
    found = [package_name]
    found += [module.name for module in pkgutil.walk_packages(package.__path__, f"{package_name}.")]
    return [name for name in found if not name.endswith(".__main__")]


if __name__ == "__main__":
    names = [name for package_name in sys.argv[1:] for name in modules_of(package_name)]
    for name in names:
        importlib.import_module(name)
    sys.stdout.write(f"{len(names)}\n")
