"""What happens to rows of a stream before an operator judges them: a module for each kind. Pure."""
