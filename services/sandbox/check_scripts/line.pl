# The line between a Perl program and its check: texts, lists and hashes by content, functions and objects by number.
package Agentrl::Line;
sub new { my ($class, $side) = @_; bless { side => $side, given => [], in => do { open my $in, '+<&=', 3 or die; binmode $in; $in } }, $class }
sub give { my ($self, $value) = @_; push @{ $self->{given} }, $value; $#{ $self->{given} } }
sub encode {
    my ($self, $value) = @_;
    return 'u' unless defined $value;
    my $kind = ref $value;
    if ($kind eq '') {
        my $mark = utf8::is_utf8($value) ? 'S' : 's';
        utf8::encode($value) if $mark eq 'S';
        return $mark . length($value) . ':' . $value;
    }
    return "y$value->{place};" if $kind eq 'Agentrl::Object';
    return 'a' . @$value . ';' . join '', map { $self->encode($_) } @$value if $kind eq 'ARRAY';
    return 'h' . keys(%$value) . ';' . join '', map { $self->encode($_), $self->encode($value->{$_}) } keys %$value if $kind eq 'HASH';
    return 'r' . $self->encode($$value) if $kind eq 'SCALAR' || $kind eq 'REF';
    return ($kind eq 'CODE' ? 'c' : 'o') . $self->give($value) . ';';
}
sub decode {
    my ($self, $text) = @_;
    die "not a value\n" unless $$text =~ /\G([usSahrcoy])/gc;
    my $mark = $1;
    return undef if $mark eq 'u';
    return \(my $inner = $self->decode($text)) if $mark eq 'r';
    die "not a value\n" unless $$text =~ /\G([0-9]+)[:;]/gc;
    my $number = $1;
    if ($mark eq 's' || $mark eq 'S') {
        my $value = substr $$text, pos $$text, $number;
        pos($$text) += $number;
        utf8::decode($value) if $mark eq 'S';
        return $value;
    }
    return [map { $self->decode($text) } 1 .. $number] if $mark eq 'a';
    return { map { my $key = $self->decode($text); ($key, $self->decode($text)) } 1 .. $number } if $mark eq 'h';
    return $self->{given}[$number] if $mark eq 'y';
    return $self->{side}->stand($self, $mark, $number);
}
sub send {
    my ($self, $value) = @_;
    my $data = $self->encode($value);
    $data = sprintf('%08d', length $data) . $data;
    while (length $data) {
        my $done = syswrite $self->{in}, $data;
        return $self->{side}->hung_up unless $done;
        substr $data, 0, $done, '';
    }
}
sub read_bytes {
    my ($self, $size) = @_;
    my $data = '';
    while (length $data < $size) {
        my $got = sysread $self->{in}, $data, $size - length $data, length $data;
        return $self->{side}->hung_up unless $got;
    }
    return $data;
}
sub receive {
    my $self = shift;
    my $size = $self->read_bytes(8);
    return $self->{side}->hung_up unless $size =~ /^[0-9]{8}$/ && $size < 1 << 26;
    my $text = $self->read_bytes($size);
    pos($text) = 0;
    return $self->decode(\$text);
}
sub answer {
    my ($self, $frame) = @_;
    my @found = eval { $self->{side}->act($self, @$frame[1 .. $#$frame]) };
    my $error = $@;
    $self->send($error eq '' ? ['answer', [@found], [@$frame[2 .. $#$frame]]] : ['error', $error]);
}
sub ask {
    my ($self, $what, @values) = @_;
    $self->send(['ask', $what, @values]);
    while (my $frame = $self->receive) {
        if ($frame->[0] eq 'ask') { $self->answer($frame); next }
        die $frame->[1] if $frame->[0] eq 'error';
        $self->update($values[$_], $frame->[2][$_]) for 0 .. $#values;
        return @{ $frame->[1] };
    }
}
sub update {
    my ($self, $mine, $new) = @_;
    return if ref $mine ne ref $new;
    if (ref $mine eq 'ARRAY') {
        $#$mine = $#$new;
        for (0 .. $#$new) { ref $mine->[$_] && ref $new->[$_] ? $self->update($mine->[$_], $new->[$_]) : ($mine->[$_] = $new->[$_]) }
    } elsif (ref $mine eq 'HASH') {
        delete @$mine{ grep { !exists $new->{$_} } keys %$mine };
        for (keys %$new) { ref $mine->{$_} && ref $new->{$_} ? $self->update($mine->{$_}, $new->{$_}) : ($mine->{$_} = $new->{$_}) }
    } elsif (ref $mine eq 'SCALAR') { $$mine = $$new }
}
