"""Expressions from text, in words of SQL: a parser of Pratt's kind, which asks of each operator how tightly it binds.

``a + b * c``: after ``a`` stands ``+``, which binds tighter than nothing, so what follows is read as long as it binds
tighter than ``+``; ``*`` does. The tree is that which Python's operators would make, and what
`tidestate.operators.expressions.printing` prints of it is read to the same tree again. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from difflib import get_close_matches
from typing import NamedTuple, NoReturn

from tidestate.operators.expressions.names import FUNCTION_NAMES
from tidestate.operators.expressions.printing import (
    AND,
    COMPARISON,
    INFIX,
    INTERVAL_UNITS_US,
    NEGATION,
    NOT,
    OR,
    POSTFIX,
    RESERVED_WORDS,
)
from tidestate.operators.expressions.sql_types import type_named
from tidestate.operators.expressions.tree import (
    CallNode,
    ColumnNode,
    ExprNode,
    LiteralNode,
    check_bounds,
    literal_node,
)
from tidestate.statestore.errors import UsageError
from tidestate.statestore.spec.arrowtypes import type_text

MAX_EXPRESSION_LETTERS = 131_072
MAX_NESTING = 100
"""Of parentheses, calls and prefixes in each other; a tree of more than 64 levels is refused anyway."""
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
      | (?P<bytes>[xX]'[^']*')
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<sign><=>|=>|<=|>=|!=|<>|==|[-+*/%=<>(),.])
    )""",
    re.VERBOSE,
)
_FUNCTION_BY_WORD = {word: (function, level) for function, (word, level) in INFIX.items()}
_FUNCTION_BY_WORD |= {"==": ("eq", COMPARISON), "<>": ("ne", COMPARISON)}


class Token(NamedTuple):
    """A word of the text: its kind, its letters (words in lower case), and where it begins."""

    kind: str
    text: str
    position: int
    letters: str


def parse_expression(text: str) -> ExprNode:
    """The tree that a text says. Raises `UsageError`: ``expression-text`` with the place where it cannot be read,
    ``expression-function`` for a function that there is not, ``expression-size`` for one that is too large.
    """
    if not isinstance(text, str):
        raise UsageError(
            "an expression is text, such as \"price > 0 and status != 'test'\"",
            code="expression-text",
            found=f"{text!r:.100}",
        )
    parser = _Parser(text)
    tree = parser.expression(0)
    if parser.token.kind != "end":
        parser.refuse("and, or, an operator, or the end")
    check_bounds(tree)
    return tree


def _tokens(text: str) -> list[Token]:
    if len(text) > MAX_EXPRESSION_LETTERS:
        _refuse(text, MAX_EXPRESSION_LETTERS, f"at most {MAX_EXPRESSION_LETTERS} letters")
    tokens, end, length = [], 0, len(text.rstrip())
    while end < length:
        match = _TOKEN.match(text, end)
        if match is None or match.lastgroup is None:
            blanks = len(text) - len(text[end:].lstrip())
            _refuse(text, blanks, "a name, a number, text in quotes or an operator")
        letters, kind = match[match.lastgroup], match.lastgroup
        tokens.append(Token(kind, letters.lower() if kind == "word" else letters, match.start(kind), letters))
        end = match.end()
    return [*tokens, Token("end", "", length, "")]


def _refuse(text: str, position: int, expected: str) -> NoReturn:
    raise UsageError(
        f"this expression cannot be read: expected {expected}",
        code="expression-text",
        place=position + 1,
        found=repr(text[position : position + 40]) if position < len(text) else "the end",
        text=repr(text[:200]),
    )


class _Parser:
    """The tokens of a text, and how far they have been read."""

    def __init__(self, text: str) -> None:
        self._text, self._tokens, self._next, self._depth = text, _tokens(text), 0, 0

    @property
    def token(self) -> Token:
        return self._tokens[self._next]

    def refuse(self, expected: str) -> NoReturn:
        _refuse(self._text, self.token.position, expected)

    def advance(self) -> Token:
        token = self.token
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def takes(self, *words: str) -> bool:
        """Whether the next tokens are these words or signs; they are read then."""
        next_tokens = self._tokens[self._next : self._next + len(words)]
        if [token.text for token in next_tokens if token.kind in ("word", "sign")] != list(words):
            return False
        self._next += len(words)
        return True

    def expect(self, word: str) -> None:
        if not self.takes(word):
            self.refuse(word)

    def expression(self, level: int) -> ExprNode:
        """What can be read from here and binds tighter than ``level``."""
        self._depth += 1
        if self._depth > MAX_NESTING:
            self.refuse(f"no more than {MAX_NESTING} parentheses in each other")
        tree = self._prefix()
        while (longer := self._longer(tree, level)) is not None:
            tree = longer
        self._depth -= 1
        return tree

    def _longer(self, tree: ExprNode, level: int) -> ExprNode | None:
        """``tree`` with the operator that follows it; None if there is none, or one that binds less."""
        token = self.token
        if token.kind not in ("word", "sign"):
            return None
        if token.text in ("and", "or"):
            own_level = AND if token.text == "and" else OR
            return self._chain(tree, token.text, own_level) if own_level > level else None
        if token.text in _FUNCTION_BY_WORD:
            function, own_level = _FUNCTION_BY_WORD[token.text]
            if own_level <= level:
                return None
            self.advance()
            return CallNode(function, (tree, self.expression(own_level)))
        if token.text == "." and level < POSTFIX:
            self.advance()
            return CallNode("field", (tree, literal_node(self._name("the name of a field"))))
        return self._predicate(tree) if level < COMPARISON else None

    def _chain(self, tree: ExprNode, word: str, level: int) -> ExprNode:
        """``a and b and c`` is one call of three arguments."""
        parts = [tree]
        while self.takes(word):
            parts.append(self.expression(level))
        return CallNode(word, tuple(parts))

    def _predicate(self, tree: ExprNode) -> ExprNode | None:
        """``is null``, ``in``, ``between``, and these and ``like`` after ``not``."""
        if self.takes("is", "not", "null"):
            return CallNode("not", (CallNode("is_null", (tree,)),))
        if self.takes("is", "null"):
            return CallNode("is_null", (tree,))
        is_negated = self.takes("not")
        if self.takes("in", "("):
            condition: ExprNode = CallNode("isin", (tree, *self._arguments()))
        elif self.takes("between"):
            lower = self.expression(COMPARISON)
            self.expect("and")
            condition = CallNode("between", (tree, lower, self.expression(COMPARISON)))
        elif is_negated and self.token.text in ("like", "rlike"):
            condition = CallNode(self.advance().text, (tree, self.expression(COMPARISON)))
        elif is_negated:
            self.refuse("in, between, like or rlike after not")
        else:
            return None
        return CallNode("not", (condition,)) if is_negated else condition

    def _prefix(self) -> ExprNode:
        token = self.advance()
        reader: Callable[[Token], ExprNode] | None = getattr(self, f"_read_{token.kind}", None)
        if reader is None:
            self._next -= token.kind != "end"
            self.refuse("a column, a literal, a function or (")
        return reader(token)

    def _read_sign(self, token: Token) -> ExprNode:
        if token.text == "(":
            tree = self.expression(0)
            self.expect(")")
            return tree
        # A literal with its sign: the least whole number has no positive one of its size.
        if token.text == "-" and self.token.kind == "number":
            return self._number(f"-{self.advance().text}")
        if token.text == "-":
            return CallNode("neg", (self.expression(NEGATION),))
        self._next -= 1
        return self.refuse("a column, a literal, a function or (")

    def _read_number(self, token: Token) -> ExprNode:
        return self._number(token.text)

    def _number(self, text: str) -> LiteralNode:
        is_whole = text.lstrip("-").isdigit()
        if is_whole and not -(2**63) <= int(text) < 2**63:
            self._next -= 1
            self.refuse(f"a whole number of 64 bits; longer ones are written decimal '{text}'")
        return literal_node(int(text) if is_whole else float(text))

    def _read_text(self, token: Token) -> ExprNode:
        return literal_node(_unquoted(token.text))

    def _read_bytes(self, token: Token) -> ExprNode:
        return self._literal(token, lambda text: bytes.fromhex(text), token.text[1:])

    def _read_quoted(self, token: Token) -> ExprNode:
        return ColumnNode(token.text[1:-1].replace("``", "`"))

    def _read_word(self, token: Token) -> ExprNode:
        if token.text in ("true", "false", "null"):
            return literal_node({"true": True, "false": False, "null": None}[token.text])
        if token.text == "not":
            return CallNode("not", (self.expression(NOT - 1),))
        if token.text == "case":
            return self._case()
        if token.text == "interval":
            return self._interval()
        if token.text in _MAKERS and self.token.kind == "text":
            return self._literal(token, _MAKERS[token.text], self.advance().text)
        if self.takes("("):
            return self._cast() if token.text == "cast" else self._call(token)
        if token.text in RESERVED_WORDS:
            self._next -= 1
            self.refuse(f"a column, a literal or a function; a column of this name is written `{token.letters}`")
        return ColumnNode(token.letters)

    def _call(self, token: Token) -> ExprNode:
        if token.text not in FUNCTION_NAMES:
            raise UsageError(
                "there is no such function",
                code="expression-function",
                found=token.letters,
                nearest=get_close_matches(token.text, FUNCTION_NAMES, n=3),
                functions=sorted(FUNCTION_NAMES),
            )
        if self.takes(")"):
            return CallNode(token.text, ())
        args, zone = [], None
        while True:
            if self.takes("zone", "=>"):
                zone = (
                    _unquoted(self.advance().text) if self.token.kind == "text" else self.refuse("a zone in quotes")
                )
            else:
                args.append(self.expression(0))
            if zone is not None or not self.takes(","):
                break
        self.expect(")")
        return CallNode(token.text, tuple(args), zone)

    def _arguments(self) -> list[ExprNode]:
        """Expressions between commas, up to the parenthesis that ends them."""
        args = [self.expression(0)]
        while self.takes(","):
            args.append(self.expression(0))
        self.expect(")")
        return args

    def _cast(self) -> ExprNode:
        tree = self.expression(0)
        self.expect("as")
        start, first = self.token.position, self._next
        self._name("a type")
        if self.takes("("):
            while not self.takes(")"):
                if self.advance().kind == "end":
                    self.refuse(")")
        kind = type_named(self._text[start : self.token.position].strip())
        if kind is None:
            self._next = first
            self.refuse("a type, such as bigint, double, decimal(10,2), string, boolean, date or timestamp")
        self.expect(")")
        return CallNode("cast", (tree,), type=type_text(kind))

    def _case(self) -> ExprNode:
        parts: list[ExprNode] = []
        while self.takes("when"):
            parts.append(self.expression(0))
            self.expect("then")
            parts.append(self.expression(0))
        if not parts:
            self.refuse("when")
        if self.takes("else"):
            parts.append(self.expression(0))
        self.expect("end")
        return CallNode("when", tuple(parts))

    def _interval(self) -> ExprNode:
        negative = self.takes("-")
        token = self.advance()
        digits = _unquoted(token.text) if token.kind == "text" else token.text
        unit = self.token.text.removesuffix("s")
        if not re.fullmatch(r"-?\d{1,20}", digits, re.ASCII) or unit not in INTERVAL_UNITS_US:
            self.refuse("interval, a whole number and a unit: microsecond to week; months and years have no length")
        self.advance()
        try:
            span = timedelta(microseconds=(-1 if negative else 1) * int(digits) * INTERVAL_UNITS_US[unit])
            return literal_node(span)
        except (OverflowError, UsageError):
            self.refuse("a shorter interval")

    def _name(self, expected: str) -> str:
        token = self.advance()
        if token.kind not in ("word", "quoted"):
            self._next -= token.kind != "end"
            self.refuse(expected)
        return token.letters if token.kind == "word" else token.text[1:-1].replace("``", "`")

    def _literal(self, token: Token, make: Callable[[str], object], text: str) -> ExprNode:
        try:
            return literal_node(make(_unquoted(text)))
        except (ValueError, InvalidOperation, OverflowError):
            self._next -= 1
            self.refuse(
                f"{token.text[:1] if token.kind == 'bytes' else token.text} and a value of that type in quotes"
            )


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


_MAKERS: dict[str, Callable[[str], object]] = {
    "date": date.fromisoformat,
    "timestamp": datetime.fromisoformat,
    "decimal": Decimal,
    "double": float,
}
"""What makes a literal of text, by the word before it."""
