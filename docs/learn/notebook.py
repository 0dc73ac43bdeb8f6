"""The chapters as scripts, as executed notebooks, and as pages.

A chapter is written once, as a script in percent format. This command runs scripts, and writes a notebook with their
outputs next to each:

    python docs/learn/notebook.py [docs/learn/1-mesh.py ...]

MkDocs loads this module as well, to make pages of the notebooks. Cells have tags: the outputs of a cell tagged `varies`
differ from run to run, and a cell tagged `answer` is folded.
"""

import argparse
import base64
import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MARK = re.compile(r"^# %%(?P<markdown> \[markdown\])?(?: tags=(?P<tags>\[.*\]))?$", re.MULTILINE)
HEAD = "---\nhide: [toc]\n---"
Cell = dict[str, Any]


def chapters() -> list[Path]:
    """The scripts of all chapters, in order."""
    return sorted(FOLDER.glob("[0-9]-*.py"))


def scripts() -> list[Path]:
    """Those of the chapters and of the exercises."""
    return [*chapters(), FOLDER / "exercises.py"]


def cells(script: str) -> list[Cell]:
    """The cells of a script in percent format, as a notebook has them before it is executed."""
    marks = [*MARK.finditer(script)]
    ends = [mark.start() for mark in marks[1:]] + [len(script)]
    return [
        _cell(i, mark, script[mark.end() : end].strip()) for i, (mark, end) in enumerate(zip(marks, ends, strict=True))
    ]


def _cell(index: int, mark: re.Match[str], source: str) -> Cell:
    tags = json.loads(mark["tags"] or "[]")
    hidden = {"jupyter": {"source_hidden": True, "outputs_hidden": True}} if "answer" in tags else {}
    shared = {"id": f"cell-{index}", "metadata": ({"tags": tags} | hidden) if tags else {}}
    if mark["markdown"]:
        return {"cell_type": "markdown", **shared, "source": re.sub("^# ?", "", source, flags=re.MULTILINE)}
    return {"cell_type": "code", **shared, "source": source, "execution_count": None, "outputs": []}


def executed(script: Path) -> dict[str, Any]:
    """Run a script cell by cell in this process, and return its notebook. The figures of a cell are its outputs."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    found, namespace = cells(script.read_text()), {"__name__": "__main__"}
    for count, cell in enumerate((cell for cell in found if cell["cell_type"] == "code"), 1):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(cell["source"], f"{script.name} {cell['id']}", "exec"), namespace)
        text = [{"output_type": "stream", "name": "stdout", "text": printed.getvalue()}] if printed.getvalue() else []
        cell["outputs"], cell["execution_count"] = [*text, *map(_picture, map(plt.figure, plt.get_fignums()))], count
        plt.close("all")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": found, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _picture(figure: Any) -> Cell:
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=110, bbox_inches="tight", metadata={"Software": None})
    data = {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": figure.get_label()}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def markdown(notebook: dict[str, Any]) -> str:
    """The Markdown of a notebook: its cells with their outputs. It hides the table of contents, for wider code."""
    return "\n\n".join([HEAD, *(part for cell in notebook["cells"] for part in _parts(cell))]) + "\n"


def _parts(cell: Cell) -> Iterable[str]:
    if cell["cell_type"] == "markdown":
        yield cell["source"]
        return
    folded = "answer" in cell["metadata"].get("tags", [])
    if folded:
        yield '<details markdown="1"><summary>Answer in code</summary>'
    yield f"```python\n{cell['source']}\n```"
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            yield f"```text\n{output['text']}```"
        else:
            yield f"![{output['data']['text/plain']}](data:image/png;base64,{output['data']['image/png']})"
    if folded:
        yield "</details>"


def on_files(files: Any, config: Any) -> Any:
    """Tell MkDocs that notebooks are pages."""
    for file in files:
        if file.src_uri.endswith(".ipynb"):
            file.is_documentation_page = lambda: True
            for derived in ("dest_uri", "url", "abs_dest_path"):
                vars(file).pop(derived, None)
    return files


def on_page_read_source(page: Any, config: Any) -> str | None:
    """Give MkDocs the Markdown of a notebook."""
    return markdown(json.loads(page.file.content_string)) if page.file.src_uri.endswith(".ipynb") else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Run scripts, each in a process of its own, and write their notebooks."""
    parser = argparse.ArgumentParser(description="Run chapters, and write their notebooks.")
    parser.add_argument("scripts", nargs="*", type=Path, default=scripts(), metavar="SCRIPT", help="default: all")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="DIR", help="folder of the notebooks")
    option = parser.parse_args(arguments)
    if len(option.scripts) > 1:
        for script in option.scripts:
            subprocess.run([sys.executable, __file__, str(script), "--out", str(option.out)], check=True)
        return
    (script,) = option.scripts
    text = json.dumps(executed(script), indent=1, ensure_ascii=False)
    (option.out / f"{script.stem}.ipynb").write_text(text + "\n")


if __name__ == "__main__":
    main()
