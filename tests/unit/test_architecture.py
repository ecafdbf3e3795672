"""Imports go downward only; the layers of the package, from the bottom."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "normfed"

LAYERS = [
    ["errors", "_version", "memory"],
    ["text"],
    ["keys", "finch"],
    ["state", "dropout", "cohort", "schedule", "prepare"],
    ["norm"],
    ["net", "optim", "metrics", "losses", "reducers", "surgery"],
    ["method", "stopping", "rates"],
    ["needs"],
    ["methods", "expression"],
    ["plan"],
    ["client"],
    ["data", "models"],
    ["engines"],
    ["server"],
    ["checkpoint", "dry", "evaluate"],
    ["pictures"],
    ["checks"],
    ["settings", "dispatch", "explain"],
    ["experiment", "recipe"],
    ["testing", "compare"],
    ["runs"],
    ["library"],
    ["report"],
    ["demo", "bench"],
    ["evidence"],
    ["reproduce"],
    ["tables"],
    ["cli"],
]
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer}


def imports(path):
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node) for block in ast.walk(tree)
        if isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING" for node in ast.walk(block)
    }  # fmt: skip
    for node in ast.walk(tree):
        if id(node) in typing_only or not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module == "normfed":
            yield from (alias.name for alias in node.names if alias.name in RANK)
        elif node.module.startswith("normfed."):
            yield node.module.split(".")[1]


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part != "__init__":
            yield part, path


def test_every_module_has_a_layer():
    assert {part for part, _ in modules()} <= set(RANK)


def test_imports_go_downward():
    upward = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for part, path in modules()
        for name in imports(path)
        if name != part and RANK[name] >= RANK[part] and not (part == "expression" and name == "methods")
    ]
    assert not upward, upward


def test_methods_know_no_engine_and_engines_no_method():
    for part, path in modules():
        names = set(imports(path))
        if part == "methods":
            assert not names & {"engines", "server", "client", "experiment", "dispatch"}
        if part in ("engines", "server", "client", "plan"):
            assert "methods" not in names
            text = path.read_text()
            assert "fedbn" not in text and "fedavg" not in text.lower().replace("fedavg + algorithm 2", ""), path
