"""Where Flower is imported."""

import ast
from pathlib import Path

import fedmrl

ROOT = Path(fedmrl.__file__).parent


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_flower_is_imported_in_its_own_package_only_and_from_public_modules():
    found = {(path, name) for path in ROOT.rglob("*.py") for name in imported(path) if name.partition(".")[0] == "flwr"}
    assert {path.parent for path, _ in found} == {ROOT / "flower"}
    assert {name for _, name in found} <= {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
