"""`python -m workbench`, and what `accelerate launch -m workbench` starts."""

from __future__ import annotations

from workbench.cli import main

main()
