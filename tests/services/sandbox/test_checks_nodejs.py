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
]


@pytest.mark.parametrize(("program", "check"), RIGHT)
def test_a_right_program_passes(quick: Server, program: str, check: str) -> None:
    must_pass(quick, "nodejs", program, check)


@pytest.mark.parametrize(("program", "check"), WRONG)
def test_a_wrong_program_does_not_pass(quick: Server, program: str, check: str) -> None:
    must_not_pass(quick, "nodejs", program, check)
