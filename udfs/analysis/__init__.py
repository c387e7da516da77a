"""Looking at a group from outside: what an order promises, what is held and why."""
