//! The `nodelb` binary.

fn main() {}
