"""Judges what was published by the documents' definitions, with code of its own: `precede check`.

It shares with the kernel the reading of a record and nothing else, so that a mistake of the kernel is not repeated
here. What arrives is judged record by record, and forgotten once nothing can depend on it.
"""
