"""Other engines beside ours: the same order, messages, broker and machine, one engine after the other."""
