"""Python source as a graph over its tokens."""

from __future__ import annotations

import dataclasses
import sys
import tokenize
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import relgraph as rg
from relgraph.interop import python
from relgraph.interop.python import EDGE_TYPES, TOKEN_KINDS, read

SYNTAX = EDGE_TYPES.index("SYNTAX")


def named(source, edge_type):
    """Edges as "text@index of that text" pairs, so that a test reads like its source."""
    graph = read(source)
    seen, names = {}, []
    for text in graph.tokens:
        seen[text] = seen.get(text, 0) + 1
        names.append(f"{text}{seen[text]}")
    return {(names[a], names[b]) for a, b in graph.edges(edge_type)}


def of(source, edge_type, *variables):
    """The edges of these variables only."""
    return {(a, b) for a, b in named(source, edge_type) if a.rstrip("0123456789") in variables}


def test_tokens():
    graph = read("def f(x):  # why\n\n    return f'{x}' 'b', 1.5\n")
    assert graph.tokens == (
        "def", "f", "(", "x", ")", ":", "<newline>", "<indent>", "return", "f'{x}'", "'b'", ",", "1.5", "<newline>", "<dedent>",
    )  # fmt: skip
    assert [TOKEN_KINDS[kind] for kind in graph.graph.node_type.tolist()] == list(graph.kinds)
    assert graph.kinds[:4] == ("KEYWORD", "NAME", "OP", "NAME")
    assert graph.positions[:2] == ((1, 0), (1, 4))
    assert EDGE_TYPES[:11] == rg.labelers.GREAT_TYPES
    assert python.read("é = 1; é").positions == ((1, 0), (1, 2), (1, 4), (1, 5), (1, 7), (1, 8))


def test_syntax():
    assert named("x = (a + b) * f(c)", "SYNTAX") == {
        ("=1", "x1"), ("=1", "*1"), ("=1", "<newline>1"), ("*1", "(1"), ("*1", "+1"), ("*1", ")1"), ("+1", "a1"), ("+1", "b1"),
        ("*1", "(2"), ("(2", "f1"), ("(2", "c1"), ("(2", ")2"),
    }  # fmt: skip
    assert named("@d\ndef f(): pass", "SYNTAX") == {
        ("def1", text) for text in ("@1", "d1", "<newline>1", "f1", "(1", ")1", ":1", "pass1", "<newline>2")
    }


def test_straight_line():
    source = "x = 1\ny = x\nx += y\nprint(x)"
    assert of(source, "LAST_WRITE", "x", "y") == {("x2", "x1"), ("x3", "x1"), ("x4", "x3"), ("y2", "y1")}
    assert of(source, "LAST_READ", "x", "y") == {("x3", "x2"), ("x4", "x3")}
    assert of(source, "NEXT_USE", "x", "y") == {("x1", "x2"), ("x2", "x3"), ("x3", "x4"), ("y1", "y2")}
    assert named(source, "COMPUTED_FROM") == {("y1", "x2"), ("x3", "y2")}
    assert named(source, "CFG_NEXT") == {("=1", "=2"), ("=2", "+=1"), ("+=1", "(1")}
    assert of(source, "LAST_LEXICAL_USE", "x") == {("x2", "x1"), ("x3", "x2"), ("x4", "x3")}
    assert len(named(source, "NEXT_SYNTAX")) == len(read(source).tokens) - 1


def test_branches_and_loops():
    source = "x = 1\nif c:\n    x = 2\nelse:\n    pass\nx"
    assert of(source, "LAST_WRITE", "x") == {("x2", "x1"), ("x3", "x1"), ("x3", "x2")}
    assert named(source, "CFG_NEXT") == {
        ("=1", "if1"), ("if1", "=2"), ("if1", "pass1"), ("=2", "x3"), ("pass1", "x3")
    }  # fmt: skip
    source = "for i in s:\n    if i: continue\n    if t: break\n    u(i)\nelse:\n    i\ni"
    assert of(source, "LAST_WRITE", "i") == {("i1", "i1"), *((f"i{n}", "i1") for n in range(2, 6))}
    assert of(source, "LAST_READ", "i") == {
        ("i1", "i2"), ("i1", "i3"), ("i2", "i2"), ("i2", "i3"), ("i3", "i2"), ("i4", "i2"), ("i4", "i3"),
        ("i5", "i2"), ("i5", "i4"),
    }  # fmt: skip
    assert named(source, "CFG_NEXT") == {
        ("for1", "if1"), ("if1", "continue1"), ("continue1", "for1"), ("if1", "if2"), ("if2", "break1"), ("if2", "(1"),
        ("(1", "for1"), ("for1", "i4"), ("i4", "i5"), ("break1", "i5"),
    }  # fmt: skip
    assert of("while True:\n    x = 1\n    break\nx", "LAST_WRITE", "x") == {("x2", "x1")}
    assert of("a and (x := 1)\nx\ny = x if x else 2", "LAST_WRITE", "x") == {("x2", "x1"), ("x3", "x1"), ("x4", "x1")}
    assert of("x = 1\nassert c, x\nx", "LAST_READ", "x") == set()


def test_exceptions():
    source = "x = 1\ntry:\n    x = 2\n    x = 3\nexcept E as e:\n    x, e\nelse:\n    x\nfinally:\n    x\nx"
    wanted = {"x2": "1", "x3": "2", "x4": "123", "x5": "3", "x6": "123", "x7": "123"}
    assert of(source, "LAST_WRITE", "x", "e") == {
        ("e2", "e1"), *((x, f"x{n}") for x, several in wanted.items() for n in several)
    }  # fmt: skip
    source = "def f(x):\n    try:\n        return x\n    finally:\n        x = 2\n    x"
    assert of(source, "LAST_READ", "x") == {("x3", "x2")}  # nothing comes after the return but what is final
    assert of("x = 1\nwith a as x, x as b:\n    x", "LAST_WRITE", "x") == {("x2", "x1"), ("x3", "x2"), ("x4", "x2")}
    assert named("with f(a) as b: pass", "COMPUTED_FROM") == {("b1", "f1"), ("b1", "a1")}
    assert of("def f(x):\n    raise E\n    x = 1\n    x", "LAST_WRITE", "x") == {("x3", "x2")}


def test_patterns():
    source = "match v:\n    case [x, *y] | {'k': x, **y} if x: x\n    case A(b=x) as y: x, y\n    case z: z\nx"
    assert of(source, "LAST_WRITE", "x", "y", "z") == {
        ("x3", "x1"), ("x3", "x2"), ("x4", "x1"), ("x4", "x2"), ("x5", "x1"), ("x5", "x2"), ("x6", "x5"), ("y3", "y1"),
        ("y3", "y2"), ("y4", "y3"), ("z2", "z1"), *(("x7", f"x{n}") for n in (1, 2, 5)),
    }  # fmt: skip


def test_scopes():
    source = "x = 1\ny = [x for x in x]\ndef f(a=x):\n    x = a\n    return x\nx"
    assert of(source, "LAST_WRITE", "x") == {
        ("x2", "x3"), ("x3", "x3"), ("x4", "x1"), ("x5", "x1"), ("x7", "x6"), ("x8", "x1")
    }  # fmt: skip
    assert of("x = 1\ndef f():\n    global x\n    x = 2\n    x\nx", "LAST_WRITE", "x") == {
        ("x3", "x1"),
        ("x4", "x3"),
        ("x5", "x1"),
    }
    source = "def f():\n    x = 1\n    def g():\n        nonlocal x\n        x\n    lambda x: x\n    class A:\n        x = x\n        def h(self): return x"
    assert of(source, "LAST_WRITE", "x") == {("x3", "x1"), ("x5", "x4"), ("x8", "x1")}
    assert of("[(y := i) for i in s if i]\ny", "LAST_WRITE", "y", "i") == {
        ("y2", "y1"),
        ("y1", "y1"),
        ("i1", "i2"),
        ("i2", "i2"),
        ("i3", "i2"),
    }
    assert of("import a.b, c as d\nfrom e import *\na, d\ndel d\nd", "LAST_WRITE", "a", "d") == {
        ("a2", "a1"), ("d2", "d1"), ("d3", "d1"), ("d4", "d3")
    }  # fmt: skip
    assert of("x: int\nx: int = 1\nx", "LAST_WRITE", "x") == {("x3", "x2")}
    assert of("async def f(*a, b, **c):\n    async for d in a: await d\n    yield b, c", "LAST_WRITE", *"abc") == {
        ("a2", "a1"), ("b2", "b1"), ("c2", "c1")
    }  # fmt: skip


def test_formatted_strings_read():
    source = 'x = 1\nprint("a" f"{x!r:>{w}} {[x for x in x]}")\nx'
    string = 'f"{x!r:>{w}} {[x for x in x]}"1'
    assert named(source, "LAST_WRITE") >= {(string, "x1"), ("x2", "x1")}
    assert ("x2", string) in named(source, "LAST_READ")
    assert of('s = f"{(n := 1)} {n.a} {f(n)} {(lambda: n)}"', "LAST_WRITE", "s") == set()
    assert read('f"""{\nx}\n"""').tokens == ('f"""{\nx}\n"""', "<newline>")


def test_calls_and_returns():
    source = "def f(a, /, b, *c, d=1, **e):\n    return a\nf(1, 2, 3, d=4, z=5, *s)"
    assert named(source, "RETURNS_TO") == {("return1", "def1")}
    assert named(source, "CALLS") == {("(2", "def1")}
    assert named(source, "FORMAL_ARG_NAME") == {("12", "a1"), ("21", "b1"), ("31", "c1"), ("41", "d1"), ("51", "e1")}
    source = "class A:\n    def __init__(self, p): self.m(p, q=p)\n    def m(self, q, /): yield q\n    @staticmethod\n    def s(r): pass\nA(7).b"
    assert named(source, "FORMAL_ARG_NAME") == {("p2", "q2"), ("71", "p1")} - {("p3", "q2")}
    assert named(source, "CALLS") == {("(2", "def2"), ("(5", "class1")}
    assert named(source, "FIELD") == {("self2", "m1"), ("(5", "b1")}
    assert named(source, "RETURNS_TO") == {("yield1", "def2")}
    assert named("a.b = c[d] = *e, (f := g)", "COMPUTED_FROM") == {
        (a, b) for a, b in product(("b1", "c1"), ("e1", "g1"))
    } | {("f1", "g1")}  # fmt: skip


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters came with Python 3.12")
def test_type_parameters():
    assert of("T = 1\ndef f[T, *U, **P](x: T, y: U, z: P): pass\nT", "LAST_WRITE", "T", "U", "P") == {
        ("T3", "T2"), ("U2", "U1"), ("P2", "P1"), ("T4", "T1")
    }  # fmt: skip
    assert of("type A[T] = list[T]\nA\nclass B[T](T): pass", "LAST_WRITE", "A", "T") == {
        ("A2", "A1"), ("T2", "T1"), ("T4", "T3")
    }  # fmt: skip


def test_a_module_of_the_standard_library():
    with tokenize.open(dataclasses.__file__) as file:
        source = file.read()
    graph = read(source)
    parents = graph.graph.of_type(SYNTAX).parents()
    assert int((parents < 0).sum()) == 1
    assert graph.graph.num_nodes == len(graph.tokens) == len(graph.kinds) == len(graph.positions)
    assert sorted(graph.positions) == list(graph.positions)
    for name in ("LAST_READ", "LAST_WRITE", "LAST_LEXICAL_USE"):
        for a, b in graph.edges(name):
            assert graph.tokens[a] == graph.tokens[b] or "STRING" in (graph.kinds[a], graph.kinds[b])


def test_a_function_cut_out_of_its_module():
    source = "import os\ndef f(x):\n    x = g(x)\n    return x\nf(1)"
    whole, alone = read(source), read("def f(x):\n    x = g(x)\n    return x\n")
    first = whole.tokens.index("def")
    part = whole.only(range(first, first + len(alone.tokens)))
    assert part.tokens == alone.tokens
    assert part.graph == alone.graph
    assert whole.only([]).tokens == ()
    with pytest.raises(ValueError, match=r"nodes must ascend within \[0, 2\), got \[1, 0\]"):
        read("x").only([1, 0])
    with pytest.raises(ValueError, match=r"nodes must ascend within \[0, 2\), got \[1, 2, 3, 4, 5, 6, 7, 8\]..."):
        read("x").only(range(1, 20))


@pytest.mark.parametrize(
    "source",
    ["", "# nothing", "\n\n", "pass", "x\r\ny\rz", "\ufeffx", "(x)", "((yield))", "(a)(b)", "f(x for x in y)",
     "if a:\n\tb\n\x0c\nc"],
)  # fmt: skip
def test_small_sources(source):
    graph = read(source)
    assert graph == read(source)
    graph.graph.of_type(SYNTAX).parents()


NAMES = st.sampled_from("abc")
SIMPLE = st.tuples(st.just("set"), NAMES, st.lists(NAMES, max_size=2))
JUMPS = st.sampled_from([("break",), ("continue",)])


def blocks(inner):
    return st.lists(inner, min_size=1, max_size=3)


PROGRAMS = blocks(
    st.recursive(
        SIMPLE | JUMPS,
        lambda inner: st.tuples(st.just("if"), NAMES, blocks(inner), blocks(inner)) | st.tuples(st.just("while"), NAMES, blocks(inner)),
        max_leaves=5,
    )
)  # fmt: skip


def written_out(block, depth=1, loop=False):
    """The lines of a program; a jump outside a loop is nothing."""
    pad = "    " * depth
    for part in block:
        if part[0] == "set":
            yield f"{pad}{part[1]} = [{', '.join(part[2])}]"
        elif part[0] in ("break", "continue"):
            yield pad + (part[0] if loop else "pass")
        else:
            yield f"{pad}{part[0]} {part[1]}:"
            yield from written_out(part[2], depth + 1, loop or part[0] == "while")
            if part[0] == "if":
                yield pad + "else:"
                yield from written_out(part[3], depth + 1, loop)


def ways(block, counter, loop=False):
    """All ways through a block, at most three turns a loop: (occurrences (name, number, written), exit)."""
    found = {((), "next")}
    for part in block:
        if part[0] == "set":
            target = (part[1], next(counter), True)
            pieces = {((*((name, next(counter), False) for name in part[2]), target), "next")}
        elif part[0] in ("break", "continue"):
            pieces = {((), part[0] if loop else "next")}
        else:
            test = ((part[1], next(counter), False),)
            body = ways(part[2], counter, loop or part[0] == "while")
            if part[0] == "if":
                pieces = {(test + events, way) for events, way in body | ways(part[3], counter, loop)}
            else:
                pieces, going = {(test, "next")}, {test}
                for _ in range(3):
                    turns = {(events + more, way) for events in going for more, way in body}
                    pieces |= {(events, "next") for events, way in turns if way == "break"}
                    going = {events + test for events, way in turns if way != "break"}
                    pieces |= {(events, "next") for events in going}
        found = {(a + b, way) for a, exit_ in found if exit_ == "next" for b, way in pieces} | {
            one for one in found if one[1] != "next"
        }
    return found


def sizes(block):
    """A bound on how many ways there are."""
    total = 1
    for part in block:
        if part[0] == "if":
            total *= sizes(part[2]) + sizes(part[3])
        elif part[0] == "while":
            total *= 1 + sum(sizes(part[2]) ** n for n in (1, 2, 3))
    return total


def check(program):
    """What the graph says is what some way does, and the other way round."""
    source = "def f():\n" + "\n".join(written_out(program))
    graph = read(source)
    tokens = [n for n, text in enumerate(graph.tokens) if text in ("a", "b", "c")]
    wanted = {"LAST_READ": set(), "LAST_WRITE": set(), "NEXT_USE": set()}
    alive = set()
    for events, _ in ways(program, iter(range(1000))):
        alive.update(tokens[number] for _, number, _ in events)
        reads, writes, either = {}, {}, {}
        for name, number, written in events:
            token = tokens[number]
            for kind, last in (("LAST_READ", reads), ("LAST_WRITE", writes)):
                if name in last:
                    wanted[kind].add((token, last[name]))
            if name in either and not written:
                wanted["NEXT_USE"].add((either[name], token))
            (writes if written else reads)[name] = either[name] = token
    for name, edges in wanted.items():
        assert {(a, b) for a, b in graph.edges(name) if a in alive and b in alive} == edges, (name, source)


@given(PROGRAMS.filter(lambda program: sizes(program) < 400))
@settings(max_examples=50, deadline=None)
def test_programs_against_all_their_ways(program):
    check(program)


def test_nesting_and_length():
    deep = read("x" + ".a" * 700 + "\n" + "y = " + "lambda: " * 80 + "y\n" + "+".join(["z"] * 700))
    deep.graph.of_type(SYNTAX).parents()
    with pytest.raises(ValueError, match="source must not be nested more deeply than Python's parser allows, got"):
        read("-" * 200_000 + "x")
    many = read("def f(x):\n" + "\n".join(f"    if x > {n}:\n        return y{n}" for n in range(400)))
    assert many.graph.num_nodes > 3000


def test_refuses_bad_input(monkeypatch):
    with pytest.raises(ValueError, match="source must be Unicode text, got a surrogate at character 4"):
        read("x = '\ud800'"[0:4] + "\ud800")
    for source, line, column, message in (
        ("x\n\u00e9 = \0", 2, 5, "source must be free of null characters, got one"),
        ("x = (\n1 1)", 2, 1, "."),
        ("x = 1\ny = = 2", 2, 5, "invalid syntax"),
    ):
        with pytest.raises(SyntaxError, match=message) as caught:
            read(source)
        assert (caught.value.lineno, caught.value.offset) == (line, column)

    def fails(_):
        raise tokenize.TokenError("EOF in multi-line statement", (3, 4))

    monkeypatch.setattr(tokenize, "generate_tokens", fails)
    with pytest.raises(SyntaxError, match="EOF in multi-line statement") as caught:
        read("x")
    assert (caught.value.lineno, caught.value.offset) == (3, 5)


def test_goes_straight_into_the_labeler():
    graph = read("x = 1\nx").graph
    labels = rg.CodeRelations()(graph)
    ids = set(labels.ids.tolist())
    assert {2 * EDGE_TYPES.index("LAST_WRITE"), 2 * EDGE_TYPES.index("LAST_WRITE") + 1} <= ids
    assert labels.edge_index.shape[1] == 2 * int((graph.edge_type < 11).sum())
    batch = rg.CodeRelations()(rg.Graph.batch([graph, graph]))
    torch.testing.assert_close(batch.ids[: labels.ids.shape[0]], labels.ids)
