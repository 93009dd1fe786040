"""Reverse-mode differentiation of lowered graphs.

`reverse` goes through a graph backwards. `core` has rules for core operators, and `windows` those of
convolutions and pooling. The other tensor expressions follow the general rule of `stages`. For this rule,
`scalars` differentiates a stage's body, and `indices` finds the results that read an element. `nests`
differentiates loop nests."""
