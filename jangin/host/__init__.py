"""Functions that run in Python because no compiled code can do what they do: values that are no
tensors of numbers, and other libraries' work. Each takes and gives whole values (arrays, lists,
None, dictionaries, arrays of Python strings) and changes none of them."""
