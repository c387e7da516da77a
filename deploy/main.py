"""What spark-submit starts: the command line of precede, as `main.py run --config precede.toml`."""

from precede.command_line import main

main()
