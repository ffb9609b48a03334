"""Plain client code's ways to a model: ``Api`` over what other systems offer."""
