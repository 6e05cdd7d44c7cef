"""Expressions over columns: a tree as it is stored, its types, what computes it, and its text, both ways. Pure.

`tree` has the nodes, `builder` what users write, `functions` their namespace. `binding` fixes the types of a tree for
a schema and makes an evaluator, whose functions are in `comparisons`, `logic`, `arithmetic`, `decimals`, `texts`,
`times`, `casts` and `nested`. `parsing` and `printing` are inverse.
"""
