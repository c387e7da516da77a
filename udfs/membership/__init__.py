"""Who belongs to a group, who may speak in it, and giving up on missing messages."""
