"""``python -m torchcaps``: the command line."""

from torchcaps.cli import main

raise SystemExit(main())
