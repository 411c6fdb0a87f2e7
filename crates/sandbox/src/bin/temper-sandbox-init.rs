//! A launcher for programs that cannot start themselves again as one, such as tests.

fn main() {
    temper_sandbox::namespaces::run_launcher_if_asked();
    // Reached only when somebody runs it by hand.
    std::process::exit(64);
}
