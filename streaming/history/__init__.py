"""The history query: the output topics into Delta tables."""
