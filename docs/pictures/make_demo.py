"""Draw demo.svg: the view of `precede demo`, taken from a real run at the moment when most messages were held.

    python docs/pictures/make_demo.py --seconds 20

It needs what the demo needs: Java, and the jars of Kafka and Spark. The picture names no font of another site.
"""

import argparse
from pathlib import Path
from unittest import mock

from rich.console import Console, Group
from rich.terminal_theme import MONOKAI

from precede.demo import stage as demo_stage
from precede.demo.view import LiveView
from precede.demo.watch import DemoWatch

PICTURE = Path(__file__).with_name("demo.svg")
COLUMNS, LINES = 116, 26
DELIVERED_MIN = 12  # before that the picture is nearly empty

# Rich's own frame loads a font from another site; this one takes what the reader's machine has.
FRAME = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
    font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", "Liberation Mono", monospace;
    font-size: {char_height}px;
    line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Camera(LiveView):
    """The demo's own view, which keeps the frame with the most held messages."""

    def __init__(self, console: Console, watch: DemoWatch) -> None:
        super().__init__(console, watch)
        self.frame: Group | None = None
        self._held_max = 0

    def show(self, state: str, seconds: float) -> None:
        super().show(state, seconds)
        held = len(self._watch.held())
        if held > self._held_max and len(self._watch.deliveries) >= DELIVERED_MIN:
            self._held_max = held
            self.frame = self._picture(f"{state}, {seconds:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()

    console = Console(width=COLUMNS, height=LINES, record=True, force_terminal=True, color_system="truecolor")
    cameras: list[Camera] = []

    def open_camera(_: Console, watch: DemoWatch) -> Camera:
        cameras.append(Camera(console, watch))
        return cameras[-1]

    with mock.patch.object(demo_stage, "open_view", open_camera):
        demo_stage.perform(chosen.seconds, chosen.seed)
    frame = cameras[0].frame
    if frame is None:
        raise SystemExit("No message was held after the first deliveries: run it longer, with --seconds 40.")
    console.export_text(clear=True)  # what the run itself wrote to the terminal
    console.print(frame)
    drawn = console.export_svg(title="precede demo", theme=MONOKAI, code_format=FRAME, unique_id="demo")
    PICTURE.write_text("\n".join(line.rstrip() for line in drawn.splitlines()) + "\n")


if __name__ == "__main__":
    main()
