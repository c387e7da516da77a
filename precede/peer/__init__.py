"""Members that hear each other directly, on a segment: the documents' GroupManager, and its peers."""
