"""What is known now, from the state topic and the raw records behind it: what is held, and what became of a message."""
