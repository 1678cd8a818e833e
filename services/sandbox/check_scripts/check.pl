# Runs a check of a Perl program: what the program defines has stand-ins here, and runs in another sandbox.
BEGIN {
THE_LINE
package Agentrl::Object;
our $AUTOLOAD;
sub DESTROY { }
sub AUTOLOAD {
    my ($self, @args) = @_;
    my ($method) = $AUTOLOAD =~ /([^:]+)$/;
    my @found = $Agentrl::Check::line->ask('method', $self->{place}, [$method, @args], wantarray ? 1 : 0);
    return wantarray ? @found : $found[-1];
}
package Agentrl::Check;
our ($line, $AUTOLOAD);
sub hung_up {
    print STDERR "The program ended before its check had run.\n";
    kill 9, $$;
}
sub stand {
    my ($side, $line, $mark, $place) = @_;
    return bless { place => $place }, 'Agentrl::Object' if $mark eq 'o';
    return sub { my @found = $line->ask('call', $place, [@_], wantarray ? 1 : 0); wantarray ? @found : $found[-1] };
}
sub act {
    my ($side, $line, $what, $place, $args) = @_;
    die "refused\n" unless $what eq 'call' && ref $line->{given}[$place] eq 'CODE';
    return $line->{given}[$place]->(@$args);
}
$line = Agentrl::Line->new('Agentrl::Check');
my $ready = '';
while (length $ready < 16) {
    sysread($line->{in}, $ready, 16 - length $ready, length $ready) or last;
}
our $no_program = $ready ne '00000008s5:ready';
END { $? = $no_program ? 3 : $? ? 1 : 0 }
CORE::exit 3 if $no_program;
my ($found) = $line->ask('names', [qw(THE_NAMES)], 0);
my @known = qw(ok is isnt like unlike is_deeply cmp_ok pass fail plan done_testing can_ok isa_ok);
my %known = map { $_ => 1 } @known;
if (grep { $known{$_} } keys %$found and grep { !$known{$_} } keys %$found) {
    require Test::More;  # the real one, whatever the program has under its names
    package main;
    Test::More->import('no_plan');
    delete @$found{@known};
}
for my $name (grep { /^[A-Za-z_]\w*$/ } keys %$found) {
    for my $kind (@{ $found->{$name} }) {
        if ($kind eq 'sub' && !defined &{"main::$name"}) {
            *{"main::$name"} = sub { my @found = $line->ask('sub', $name, [@_], wantarray ? 1 : 0); wantarray ? @found : $found[-1] };
        } elsif ($kind eq 'package' && !%{"main::${name}::"}) {
            *{"${name}::AUTOLOAD"} = sub {
                my ($self, @args) = @_;
                my ($method) = $AUTOLOAD =~ /([^:]+)$/;
                my @found = $line->ask('method', $name, [$method, @args], wantarray ? 1 : 0);
                return wantarray ? @found : $found[-1];
            };
            *{"${name}::DESTROY"} = sub { };
        }
    }
}
}
package main;
#line 1 "check.pl"
THE_CHECK
;
exit 0;
