;
# Follows a Perl program under test: answers the calls of its check. Nothing here is trusted.
THE_LINE
package Agentrl::Serve;
no strict 'refs';
sub hung_up { exit 0 }
sub stand {
    my ($side, $line, $mark, $place) = @_;
    return sub { my @found = $line->ask('call', $place, [@_], 1); wantarray ? @found : $found[-1] } if $mark eq 'c';
    return bless { place => $place }, 'Agentrl::Object';
}
sub act {
    my ($side, $line, $what, @values) = @_;
    my $list = pop @values;
    if ($what eq 'names') {
        my %found;
        for my $name (@{ $values[0] }) {
            push @{ $found{$name} }, 'sub' if defined &{"main::$name"};
            push @{ $found{$name} }, 'package' if %{"main::${name}::"};
        }
        return \%found;
    }
    my ($name, $args) = @values;
    if ($what eq 'sub') { return $list ? &{"main::$name"}(@$args) : scalar &{"main::$name"}(@$args) }
    if ($what eq 'call') { my $code = $line->{given}[$name]; return $list ? $code->(@$args) : scalar $code->(@$args) }
    if ($what eq 'method') {
        my ($method, @rest) = @$args;
        my $object = $name =~ /^[0-9]+$/ ? $line->{given}[$name] : $name;
        return $list ? $object->$method(@rest) : scalar $object->$method(@rest);
    }
    die $what;
}
$| = 1;
my $line = Agentrl::Line->new('Agentrl::Serve');
$line->send('ready');
while (1) { $line->answer($line->receive) }
