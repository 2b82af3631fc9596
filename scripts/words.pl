#!/usr/bin/env perl
# Prints each line, and each file name, that has a rejected word. Usage: words.pl REJECTED QUOTATIONS <FILE-NAMES
use strict;
use warnings;

sub entries {
    my ($path) = @_;
    open my $list, '<', $path or die "$path: $!\n";
    return grep { length && !/^#/ } map { chomp; $_ } <$list>;
}

my ($rejected, $quotations) = @ARGV;
my @rules = map { my ($word, $advice) = split /\t/; [qr/\b(?:$word)\b/i, $advice] } entries($rejected);
my @quoted = entries($quotations);

sub check {
    my ($place, $text) = @_;
    for my $quoted (@quoted) { $text =~ s/\Q$quoted\E/ /g }
    my $words = $text =~ s/(?<=[a-z0-9])(?=[A-Z])/ /gr =~ tr/_/ /r;
    for my $rule (@rules) {
        print "$place: `$1`, say: $rule->[1]\n" if $words =~ /($rule->[0])/;
    }
    return;
}

while (my $path = <STDIN>) {
    chomp $path;
    check($path, $path);
    next unless -T $path;
    open my $file, '<', $path or die "$path: $!\n";
    while (my $line = <$file>) { check("$path:$.", $line) }
}
