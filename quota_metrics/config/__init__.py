"""Quota configuration as values: entities, the eight-level precedence, validation, documents, history. Sans-I/O."""
