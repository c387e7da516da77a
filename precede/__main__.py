"""`python -m precede` is the command `precede`."""

from precede.command_line import main

if __name__ == "__main__":
    main()
