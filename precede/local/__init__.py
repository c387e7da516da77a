"""What runs on one machine: the embedded broker and child processes."""
