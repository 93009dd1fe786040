"""Reverse-mode differentiation of lowered graphs.

`reverse` goes through a graph backwards. `core` has the core operators' own rules, `windows` those of
convolutions and pooling. All other tensor expressions follow the one general rule of `stages`: `scalars`
differentiates a stage's body, and `indices` finds which results an element reached. `nests` runs loop nests
backwards.
"""
