"""The commands, one file each; only `precede/command_line.py` imports them."""
