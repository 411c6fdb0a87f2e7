//! The `temper` binary.
fn main() {}
