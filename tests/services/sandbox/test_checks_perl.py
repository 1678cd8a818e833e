"""Checks of Perl programs: right ones pass, and wrong ones cannot pass by any trick."""

from __future__ import annotations

import pytest
from checks import must_not_pass, must_pass
from sandbox_service import Server

RIGHT = [
    ("sub f { 1 }", "die unless f() == 1;"),
    (
        "use strict; use warnings; sub f { my $l = shift; push @$l, 4; return map { $_ * 2 } @$l }",
        "my $l=[1]; my @r = f($l); die unless \"@r\" eq '2 8' && \"@$l\" eq '1 4';",
    ),
    (
        "package P; sub new { bless {x => $_[1]}, $_[0] } sub x { $_[0]{x} } sub add { P->new($_[0]{x} + $_[1]) } 1;",
        "my $p = P->new(2); die unless $p->add(3)->x == 5; die if $p->x != 2;",
    ),
    ("use Test::More; sub f { 1 }", "is(f(), 1); done_testing();"),
    (
        "sub f { my ($g, @l) = @_; return { map { $_ => $g->($_) } @l } }",
        "my $h = f(sub { $_[0] . 'é' }, 'a'); die unless $h->{a} eq 'aé';",
    ),
]
WRONG = [
    ("sub f { 1 }", "die unless f() == 2;"),
    ("use Test::More; no warnings; sub is { 1 } sub f { 1 }", "is(f(), 2);"),
    ("exit 0;", "1;"),
    ("sub f { exit 0 }", "die if f();"),
    ("sub f { 1 }\n__END__", "die unless f() == 1;"),
    ("$SIG{__DIE__} = sub { exit 0 }; END { $? = 0 } sub f { 1 }", "die unless f() == 2;"),
    (
        (
            "package N; use overload '==' => sub { 1 }, 'eq' => sub { 1 }, 'bool' => sub { 1 }; package "
            "main; sub f { bless {}, 'N' }"
        ),
        "die unless f() == 2;",
    ),
    (
        "BEGIN { *CORE::GLOBAL::die = sub { exit 0 } } open my $me, '<', $0; print STDERR <$me>; sub f { 1 }",
        "die unless f() == 2;",
    ),
]


@pytest.mark.parametrize(("program", "check"), RIGHT)
def test_a_right_program_passes(quick: Server, program: str, check: str) -> None:
    must_pass(quick, "perl", program, check)


@pytest.mark.parametrize(("program", "check"), WRONG)
def test_a_wrong_program_does_not_pass(quick: Server, program: str, check: str) -> None:
    must_not_pass(quick, "perl", program, check)
