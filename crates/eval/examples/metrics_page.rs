//! Prints `docs/metrics.md`.

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(temper_eval::catalog::markdown().as_bytes())
}
