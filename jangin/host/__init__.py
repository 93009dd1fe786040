"""Functions that run in Python because compiled code can't replace them: values that are no tensors of
numbers, and work of other libraries.

Each function takes and returns whole values (arrays, lists, None, dictionaries, arrays of Python strings) and
changes none of them."""
