"""What to do when a stream cannot be continued: parts of sentences that several rooms say."""

SAME_POSITIONS = ", with the same positions"
FRESH_OUTPUT = (
    "take a new ordered_topic, dead_letter_topic and progress_topic, and new checkpoint and delta folders: the whole "
    f"log is read again into them{SAME_POSITIONS}"
)
"""What to do when an ordered topic cannot be continued."""
