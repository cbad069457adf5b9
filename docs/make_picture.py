"""Make docs/demo.svg from what `make demo` really prints: .venv/bin/python docs/make_picture.py"""

import contextlib
import sys
from pathlib import Path

from rich.console import Console

from metasd import cli

ROOT = Path(__file__).parent.parent


def main() -> None:
    """Run the demo's second command with a recording console."""
    cli.out = Console(record=True, width=100)
    prompt = "examples/prompts/edit_code.txt"
    arguments = ["generate", "--compare-plain", "--max-new-tokens", "128", "--prompt-file", prompt]
    cli.out.print(f"$ metasd {' '.join(arguments)}\n", highlight=False)
    sys.argv = ["metasd", *arguments[:-1], str(ROOT / prompt)]
    with contextlib.suppress(SystemExit):
        cli.main()
    cli.out.save_svg(str(ROOT / "docs" / "demo.svg"), title="make demo")


if __name__ == "__main__":
    main()
