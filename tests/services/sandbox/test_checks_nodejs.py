"""Checks of JavaScript programs: right ones pass, and wrong ones cannot pass by any trick."""

from __future__ import annotations

import pytest
from checks import must_not_pass, must_pass
from sandbox_service import Server

RIGHT = [
    ("const f = () => 1", "require('assert')(f() === 1)"),
    ("const f = () => 1", "console.assert(f() === 1, 'f')"),
    (
        "let count = 0, name = null; function inc() { count++; name = 'a' }",
        "const assert = require('assert'); inc(); assert(count === 1 && name === 'a'); count = 7; assert(count === 7)",
    ),
    (
        "const assert = require('assert'); const f = (l) => { l.push(1); return l }",
        "const l=[3]; assert.deepStrictEqual(f(l), [3,1]); assert.deepStrictEqual(l,[3,1]); assert.equal(f(l), l)",
    ),
    (
        (
            "class P { constructor(x) { this.x = x } add(k) { return new P(this.x + k) } "
            "*[Symbol.iterator]() { yield 1; yield 2 } }"
        ),
        (
            "const assert=require('assert'); const p = new P(2); assert(p instanceof P); "
            "assert.strictEqual(p.add(3).x, 5); assert.deepStrictEqual([...p],[1,2]); p.x = 7; "
            "assert.deepEqual(p, {x: 7})"
        ),
    ),
    (
        "const f = async (x) => { await null; if (x > 2) throw new TypeError('big'); return x + 1 }",
        (
            "const assert=require('assert'); (async () => { assert.equal(await f(1), 2); await "
            "assert.rejects(f(3), TypeError) })()"
        ),
    ),
    (
        "function f(g, l) { return l.map(g) }; module.exports = {f}",
        "const {f} = require('./main'); require('assert').deepStrictEqual(f((x) => x * 2, [1, 2]), [2, 4])",
    ),
    (
        "class E extends RangeError {}; const f = () => { throw new E('no') }",
        "const assert=require('assert'); assert.throws(() => f(), E); assert.throws(() => f(), /no/)",
    ),
    (
        "const f = () => new Map([[1, new Set([NaN, undefined, 5n, -0])]])",
        "require('assert').deepStrictEqual(f(), new Map([[1, new Set([NaN, undefined, 5n, -0])]]))",
    ),
    (
        "let state = {n: 0, items: []}; function inc() { state.n++; state.items.push({id: state.n}) }",
        (
            "const assert=require('assert'); inc(); assert.strictEqual(state.n, 1); const items = "
            "state.items; inc(); assert.deepStrictEqual(items, [{id: 1}, {id: 2}]); assert(state === state)"
        ),
    ),
    (
        "let list = [1]; function add(x) { list.push(x); return list.length }",
        (
            "const assert=require('assert'); assert.equal(add(2), 2); assert.deepEqual(list, [1, 2]); "
            "list.push(9); assert.equal(add(3), 4); assert.deepEqual(list, [1, 2, 9, 3])"
        ),
    ),
    (
        "let list = [1]; function reset() { list = [] }",
        "const assert=require('assert'); reset(); assert.deepStrictEqual(list, [])",
    ),
    (
        (
            "let head = null; class Node { constructor(v) { this.v = v; this.next = head } } function "
            "push(v) { head = new Node(v) }"
        ),
        (
            "const assert=require('assert'); push(1); push(2); assert.equal(head.v, 2); "
            "assert.equal(head.next.v, 1); assert(head instanceof Node)"
        ),
    ),
    (
        "const seen = new Map(), all = new Set(); const add = (k, v) => { seen.set(k, v); all.add(v) }",
        (
            "const assert=require('assert'); add('a', 1); add('b', 2); "
            "assert.deepStrictEqual([...seen.keys()], ['a', 'b']); assert(all.has(2) && all.size === 2)"
        ),
    ),
    (
        "const counter = {n: 0, inc() { this.n += 1; return this.n }}",
        (
            "const assert=require('assert'); counter.inc(); assert.equal(counter.inc(), 2); "
            "assert.equal(counter.n, 2); counter.n = 7; assert.equal(counter.inc(), 8)"
        ),
    ),
    (
        "const state = {n: 0}; module.exports = {state, inc: () => { state.n++ }}",
        (
            "const assert=require('assert'); const {state, inc} = require('./main'); inc(); inc(); "
            "assert.equal(state.n, 2); assert.equal(require('./main').state.n, 2)"
        ),
    ),
    (
        ("let user = {name: 'a', tags: ['x']}; async function rename(n) { await null; user.name = n; user.tags = [] }"),
        (
            "const assert=require('assert'); (async () => { await rename('b'); assert.deepStrictEqual(user, "
            "{name: 'b', tags: []}) })()"
        ),
    ),
    (
        (
            "const cache = {}; function fib(n) { if (n < 2) return n; return cache[n] = cache[n] || fib(n - "
            "1) + fib(n - 2) }"
        ),
        (
            "const assert=require('assert'); assert.equal(fib(10), 55); assert.equal(cache[10], 55); "
            "assert('9' in cache); assert.equal(Object.keys(cache).length, 9)"
        ),
    ),
    (
        "let last = new Date(0); function touch() { last = new Date(5) }",
        "const assert=require('assert'); touch(); assert.equal(last.getTime(), 5)",
    ),
    (
        "const bus = {on: []}; function emit(x) { bus.on.forEach((f) => f(x)) }",
        (
            "const assert=require('assert'); const got = []; bus.on.push((x) => got.push(x)); emit(3); "
            "assert.deepStrictEqual(got, [3])"
        ),
    ),
]
WRONG = [
    ("const f = () => 1", "require('assert')(f() === 2)"),
    ("const f = () => 1", "console.assert(f() === 2)"),
    ("let count = 0; function inc() { process.exit(0) }", "inc(); require('assert')(count === undefined)"),
    ("console.assert = () => {}; const f = () => 1", "console.assert(f() === 2, 'f(%d)', 1)"),
    ("process.exit(0)", "require('assert')(true)"),
    ("const assert = {equal() {}, deepStrictEqual() {}}; const f = () => 1", "assert.equal(f(), 2)"),
    ("const f = async (x) => x", "const assert=require('assert'); (async () => { assert.equal(await f(1), 2) })()"),
    (
        "const f = () => ({valueOf() { return 2 }, equals() { return true }})",
        "require('assert').deepStrictEqual(f(), 2)",
    ),
    (
        "JSON.stringify = () => '2'; Object.is = () => true; const f = () => process.exit(0)",
        "require('assert')(f() === 2)",
    ),
    (
        (
            "process.on('exit', () => { process.exitCode = 0 }); process.on('uncaughtException', () => "
            "process.exit(0)); const f = () => { throw new Error('x') }"
        ),
        "require('assert')(f() === 2)",
    ),
    (
        "console.error(require('fs').readFileSync(__filename, 'utf8'), require.main, process.argv); const f = () => 1",
        "require('assert')(f() === 2)",
    ),
    (
        "Object.prototype.valueOf = () => 2; Number.prototype[Symbol.toPrimitive] = () => 2; const f = () => ({})",
        "require('assert')(f() === 2)",
    ),
    (
        (
            "Module = require('module'); Module._load = () => () => true; const require2 = () => () => "
            "true; const f = () => 1"
        ),
        "require('assert')(f() === 2)",
    ),
    ("const deepStrictEqual = () => {}; const f = () => 1", "deepStrictEqual(f(), 2)"),
    (
        "class A { equals() { return true } get x() { return 1 } } const f = () => new A()",
        "require('assert').deepStrictEqual(f(), {x: 2})",
    ),
    (
        "let state = {n: 0}; function inc() { state.n += 2 }",
        "const assert=require('assert'); inc(); assert.strictEqual(state.n, 1)",
    ),
    (
        "let state = {n: 0}; function inc() { state = {get n() { return 1 }, valueOf() { return 1 }} }",
        "const assert=require('assert'); inc(); assert.strictEqual(state.n, 2)",
    ),
    (
        "let list = []; function add() { list = {length: 1, 0: 2, __proto__: null} }",
        "const assert=require('assert'); add(); assert.deepStrictEqual(list, [2])",
    ),
]


@pytest.mark.parametrize(("program", "check"), RIGHT)
def test_a_right_program_passes(quick: Server, program: str, check: str) -> None:
    must_pass(quick, "nodejs", program, check)


@pytest.mark.parametrize(("program", "check"), WRONG)
def test_a_wrong_program_does_not_pass(quick: Server, program: str, check: str) -> None:
    must_not_pass(quick, "nodejs", program, check)
