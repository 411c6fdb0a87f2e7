//! Writes a report of made-up data: `sample_report OUT.html [N_TASKS [N_ATTEMPTS [N_ARMS]]]`.

#![allow(clippy::unwrap_used, dead_code)]

#[path = "../tests/common/sample.rs"]
mod sample;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("usage: sample_report OUT.html [N_TASKS [N_ATTEMPTS [N_ARMS]]]")?;
    let n_tasks = arguments.next().map_or(Ok(30), |n| n.parse())?;
    let n_attempts = arguments.next().map_or(Ok(1), |n| n.parse())?;
    let n_arms: usize = arguments.next().map_or(Ok(2), |n| n.parse())?;
    if !(1..=3).contains(&n_arms) {
        return Err("expected one to three arms".into());
    }
    std::fs::write(
        path,
        sample::Sample::new(n_tasks, n_attempts, n_arms).render()?,
    )?;
    Ok(())
}
