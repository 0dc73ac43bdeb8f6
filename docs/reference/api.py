"""docs/reference/api.md, made from the signatures and docstrings of the public names.

python docs/reference/api.py
"""

import ast
import importlib
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "api.md"
INTRODUCTION = """# API

The public names of the package `strategies`, with their docstrings. Import them from `strategies`:

```python
from strategies import PRESETS, STRATEGIES, TrainConfig
```

[Adding a strategy](../contribute/adding-a-strategy.md) says how to write one. This page is made by
`python docs/reference/api.py`.

## Use a step in your own code

README has a complete example. Also note:

- `STRATEGIES[name].build(config, mesh, train)` takes the mesh as a `MeshSpec` or a string. It raises `Infeasible`
  before anything is compiled if model, mesh and batch do not fit; the message names sizes that do.
- An option that no axis of the strategy has is refused. `STRATEGIES["single"].applicable(train)` is `train`
  without such options, for a reference on one device.
- A mesh of n devices takes the first n of `jax.devices()`.
- `step(state, batch)` donates the old state, and refuses a state that was donated before. It returns before the
  step has run.
- `step.place(tokens)` checks shape, dtype and vocabulary, and gives each device its own sequences. `step(...)`
  also checks the token ids of a batch that you placed yourself, once for each array. It waits for the first check
  only; ids that devices are still computing are checked at a later call. `step.update` checks no ids.
- `step.lower().compile()` compiles from shapes alone. Nothing is allocated.

Virtual CPU devices need some care:

- The first use of JAX, such as `jax.devices()`, fixes their number. Set `jax_num_cpu_devices` before it, or start
  Python with `JAX_NUM_CPU_DEVICES=8` in the environment.
- `step(...)` lets a loop run at most eight steps ahead of the devices. XLA's CPU client can deadlock when more
  than 32 computations of a device are in flight; `strategies/backends/pace.py` says why. If your loop dispatches
  more than three other computations a step, or calls `step.update`, start Python with `PJRT_NPROC=16` in the
  environment, two threads for each of eight devices. No loop hung with it, but most steps took longer
  ([experiment](../experiments/2026-11-25-thread-pool.md)).
- Switch off JAX's persistent compilation cache (`jax_enable_compilation_cache`). A program loaded from it can
  deadlock, because it no longer fixes the order of all collectives. The benchmarks do not use it on virtual
  devices, and `step(...)` warns if it is on.
"""
SECTIONS = {
    "Model, training and mesh": ("", ("GPTConfig", "PRESETS", "TrainConfig", "MeshSpec", "Infeasible")),
    "Strategies": ("", ("STRATEGIES", "KNOWN_AS", "Strategy", "Axis", "Implementation", "register")),
    "Steps": ("", ("check", "Mismatch", "Step", "State")),
    "Checkpoints": (
        "Functions over a step, in `strategies.checkpoints`. Importing it loads no Orbax; the first save does.\n"
        "[Checkpoints](../guides/checkpoints.md) says what is stored.",
        ("checkpoints.save", "checkpoints.Saving", "checkpoints.restore", "CheckpointError"),
    ),
    "Folders of Hugging Face": (
        "In `strategies.huggingface`. [The guide](../guides/checkpoints.md#hugging-face) says what is read.",
        ("huggingface.read", "huggingface.Pretrained", "huggingface.write", "huggingface.HuggingFaceError"),
    ),
}
"""Each section with its introduction and its names, in order."""
LISTS = {"Args:": "Arguments", "Attributes:": "Attributes", "Returns:": "Returns", "Raises:": "Raises"}
"""Sections of a docstring, and their titles on the page."""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION.strip()]
    for title, (introduction, names) in SECTIONS.items():
        parts += filter(None, (f"## {title}", introduction))
        parts += (part for name in names for part in entry(name))
    return "\n\n".join(parts) + "\n"


def entry(name: str) -> Iterator[str]:
    """The heading, the signature and the docstring of a name, and its public methods."""
    _, _, short = name.rpartition(".")
    node, doc = definition(name)
    yield f"### {short}"
    if isinstance(node, ast.FunctionDef):
        yield code(signature(node))
    elif isinstance(node, ast.ClassDef) and (fields := [ast.unparse(field) for field in own_fields(node)]):
        yield code(f"{short}(\n" + "".join(f"    {field},\n" for field in fields) + ")")
    yield markdown(doc)
    for method in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(method, ast.FunctionDef) and (method.name == "__call__" or not method.name.startswith("_")):
            yield f"#### {short}.{method.name}"
            yield code(signature(method))
            yield markdown(ast.get_docstring(method) or "")


def definition(name: str) -> tuple[ast.stmt, str]:
    """The statement that defines a public name, and its docstring; of a value, the string below it."""
    *path, short = name.split(".")
    value = getattr(importlib.import_module(".".join(("strategies", *path))), short)
    home = sys.modules[value.__module__].__file__ if isinstance(value, type) or callable(value) else None
    for file in [Path(home)] if home else sorted((ROOT / "strategies").glob("*.py")):
        body = ast.parse(file.read_text()).body
        for node, following in zip(body, [*body[1:], ast.Pass()], strict=True):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == short:
                return node, ast.get_docstring(node) or ""
            if isinstance(node, ast.Assign | ast.AnnAssign) and short in assigned(node):
                return node, str(ast.literal_eval(following.value)) if isinstance(following, ast.Expr) else ""
    raise LookupError(f"no file of strategies/ defines {short}")


def assigned(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """The names to which a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def own_fields(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    """The public fields of a dataclass or a named tuple."""
    for field in node.body:
        if isinstance(field, ast.AnnAssign) and not ast.unparse(field.target).startswith("_"):
            yield field


def signature(node: ast.FunctionDef) -> str:
    """A function with its arguments and decorators, as Python writes it."""
    decorators = "".join(f"@{ast.unparse(each)}\n" for each in node.decorator_list)
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{decorators}def {node.name}({ast.unparse(node.args)}){returned}"


def code(text: str) -> str:
    """A block of Python."""
    return f"```python\n{text}\n```"


def markdown(doc: str) -> str:
    """A docstring as Markdown: doctests are code, and each named section is a list.

    >>> print(markdown("Add.\\n\\nArgs:\\n    a: one\\n        number.\\n    b: another."))
    Add.
    <BLANKLINE>
    Arguments:
    <BLANKLINE>
    - `a`: one number.
    - `b`: another.
    """
    return "\n\n".join(_block(block) for block in re.split(r"\n\n+", doc.strip()))


def _block(block: str) -> str:
    title, _, rest = block.partition("\n")
    if title in LISTS:
        items = [" ".join(item.split()) for item in re.split(r"\n(?=\S)", textwrap.dedent(rest))]
        named = (re.sub(r"^([\w, ]+): ", r"`\1`: ", item, count=1) for item in items)
        return "\n".join([f"{LISTS[title]}:\n", *(f"- {item}" for item in named)])
    return code(block) if block.startswith(">>>") else block


if __name__ == "__main__":
    PAGE.write_text(page())
