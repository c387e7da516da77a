"""The member's side as pure objects: its knowledge of the group, trust in the raw log, and object invocation."""
