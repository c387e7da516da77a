"""A command of precede that loses datagrams, as in the demo, and is killed when the one that started it ends."""

from __future__ import annotations

from precede.demo.lossy import main
from tests.segments.network import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    main()
