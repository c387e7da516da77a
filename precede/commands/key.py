"""`precede key`: make the key pair a sender signs with."""

from pathlib import Path
from typing import Annotated

import typer

from precede.command_options import say

KEY_FILE = Path("precede.key")


def key(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="Where the private key goes.", show_default="precede.key")
    ] = KEY_FILE,
    show: Annotated[
        bool, typer.Option("--show", help="Make nothing: print the public key of the private one in FILE.")
    ] = False,
) -> None:
    """Make a key pair: the private key goes into FILE, the public key to standard output.

    FILE is readable by you alone, and one that is there already is never overwritten. Keep it where its owner speaks.

    The public key goes into the group's create record, or into the join of a newcomer; then nothing unsigned is taken:

      precede key ann.key                                   prints ann's public key

      {"kind": "create", ..., "options": {"keys": {"ann": "THAT KEY"}}}

      precede send travel ann --key ann.key "Who comes along?"

    docs/how-to/secure.md tells who must sign what, and how a key is replaced.
    """
    from precede.ingest.signing import load_key, make_key, public_text

    found = load_key(file) if show else make_key(file)
    typer.echo(public_text(found))
    if not show:
        say(f"The private key is in {file}; whoever has it can speak in its owner's name.")
