"""The nodes of programs under upstream's names."""

from sglang.ir.nodes import (
    Chain,
    ConstantText,
    Fork,
    Gen,
    Image,
    Node,
    RoleBegin,
    RoleEnd,
    Select,
    SeparateReasoning,
)
from sglang.program import SglFunction

SglExpr = Node
SglExprList = Chain
SglConstantText = ConstantText
SglFork = Fork
SglGen = Gen
SglImage = Image
SglRoleBegin = RoleBegin
SglRoleEnd = RoleEnd
SglSelect = Select
SglSeparateReasoning = SeparateReasoning

__all__ = [
    "SglConstantText",
    "SglExpr",
    "SglExprList",
    "SglFork",
    "SglFunction",
    "SglGen",
    "SglImage",
    "SglRoleBegin",
    "SglRoleEnd",
    "SglSelect",
    "SglSeparateReasoning",
]
