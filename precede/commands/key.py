"""`precede key`: makes the key pair that a sender signs with."""

from pathlib import Path
from typing import Annotated

import typer

from precede.command_options import say

KEY_FILE = Path("precede.key")


def key(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="The file for the private key.", show_default="precede.key")
    ] = KEY_FILE,
    show: Annotated[
        bool, typer.Option("--show", help="Make nothing: print the public key of the private key in FILE.")
    ] = False,
) -> None:
    """Make a key pair: the private key goes into FILE, the public key to standard output.

    Only you can read FILE, and an existing file is never overwritten. Keep it where its owner sends from.

    The public key goes into the group's create record, or into the join of a newcomer. Such a group accepts only signed
    records:

      precede key ann.key                                   prints ann's public key

      {"kind": "create", ..., "options": {"keys": {"ann": "THAT KEY"}}}

      precede send travel ann --key ann.key "Who comes along?"

    docs/how-to/secure.md describes who must sign what, and how a key is replaced.
    """
    from precede.ingest.signing import load_key, make_key, public_text

    found = load_key(file) if show else make_key(file)
    typer.echo(public_text(found))
    if not show:
        say(f"The private key is in {file}; anyone who has it can send in its owner's name.")
