"""The member's side as pure objects: what it knows, what it may believe, the objects it invokes."""
