"""The functions of shaders in which a group's work-items combine their values to one.

Each shader has them in two forms. Work-items combine in a tree, or first within their subgroups. WebGPU
doesn't promise subgroups, so that the driver or a package's loader takes the second form only if its adapter
offers them. The subgroups' size and order are read in the run, as no adapter promises either."""

from __future__ import annotations

from collections.abc import Sequence

from jangin.ir.records import dataclass

_COMBINE = {
    "add": "{0} + {1}", "mul": "{0} * {1}", "min": "min({0}, {1})", "max": "max({0}, {1})",
    "least": "least({0}, {1})", "greatest": "greatest({0}, {1})",
}  # fmt: skip
"""Texts of the operations. `least` and `greatest` pass NaN on."""
_WITHIN = {
    "add": "subgroupAdd", "mul": "subgroupMul", "min": "subgroupMin", "max": "subgroupMax",
    "least": "subgroupMin", "greatest": "subgroupMax",
}  # fmt: skip
_OWN = "@builtin(subgroup_id) own: u32, @builtin(num_subgroups) many: u32, "
_OWN += "@builtin(subgroup_invocation_id) lane_of: u32"
_PRIVATE = "var<private> subgroup: u32;\nvar<private> subgroups: u32;\nvar<private> lane: u32;"
_KEPT = "  subgroup = own;\n  subgroups = many;\n  lane = lane_of;"


@dataclass(frozen=True)
class Tree:
    """The function that combines the `count` elements of a shared array, one for each work-item, to its first
    element. Only work-item 0 may read it before the next barrier.

    - `op` is the operation, a name of `_COMBINE`, and `kind` the elements' type in WGSL.
    - `stored` tells if work-items also read what others stored in buffers before."""

    array: str
    count: int
    op: str
    kind: str
    stored: bool

    @property
    def name(self) -> str:
        return f"{self.op}_{self.array}"

    @property
    def _begin(self) -> str:
        return f"fn {self.name}(item: i32) {{\n"

    @property
    def _barrier(self) -> str:
        return "storageBarrier(); workgroupBarrier();" if self.stored else "workgroupBarrier();"

    def plain(self) -> str:
        """Return the function by a tree. In each step, half of the work-items that are left combine."""
        lines, half = list[str](), self.count // 2
        while half:
            a, b = f"{self.array}[item]", f"{self.array}[item + {half}]"
            lines.append(f"  {'workgroupBarrier();' if lines else self._barrier}")
            lines.append(f"  if (item < {half}) {{ {a} = {_COMBINE[self.op].format(a, b)}; }}")
            half //= 2
        return "\n".join([self._begin.rstrip(), *lines, "}"])

    def by_subgroups(self) -> str:
        """Return the function by subgroups. Work-item 0 combines their results in order."""
        within = f"{_WITHIN[self.op]}(own)"
        if self.op in ("least", "greatest"):  # WGSL leaves open if these pass NaN on
            within = f"select({within}, bitcast<f32>(0x7fc00000u | u.zero), subgroupAny(is_nan(own)))"
        both = _COMBINE[self.op].format("whole", f"{self.array}[n]")
        return f"""{self._begin}  let own = {self.array}[item];
  let all = {within};
  {self._barrier}
  if (lane == 0u) {{ {self.array}[subgroup] = all; }}
  workgroupBarrier();
  if (item == 0) {{
    var whole = {self.array}[0];
    for (var n = 1u; n < subgroups; n++) {{ whole = {both}; }}
    {self.array}[0] = whole;
  }}
}}"""


def with_subgroups(text: str, trees: Sequence[Tree], entry: str) -> str:
    """Return a shader that combines by subgroups. `text` has the functions by trees, and ends its parameters
    by `entry`."""
    for tree in trees:
        assert tree.plain() in text, tree
        text = text.replace(tree.plain(), tree.by_subgroups())
    head, found, body = text.partition(f"{entry}) {{\n")
    assert found, text
    return f"{_PRIVATE}\n{head}{entry}, {_OWN}) {{\n{_KEPT}\n{body}"
