//! Shows the factory's events: a line that renews itself on a terminal, plain lines elsewhere.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use temper_factory::make::{Event, Resumed, Stage};

/// How often plain progress lines come.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// Progress of one repository, on standard error.
pub struct Progress {
    label: String,
    is_terminal: bool,
    quiet: bool,
    stage_started: Instant,
    last_line: Instant,
}

impl Progress {
    /// Progress of the repository called `label`.
    pub fn new(label: &str, quiet: bool) -> Self {
        let now = Instant::now();
        Progress {
            label: label.to_owned(),
            is_terminal: std::io::stderr().is_terminal()
                && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
            quiet,
            stage_started: now,
            last_line: now,
        }
    }

    /// Shows an event.
    pub fn on(&mut self, event: &Event) {
        match event {
            Event::Started { stage, n_total } => {
                self.stage_started = Instant::now();
                self.last_line = Instant::now();
                let text = match n_total {
                    0 => words(*stage).to_owned(),
                    n => format!("{}: 0/{n}", words(*stage)),
                };
                self.renew(&text, true);
            }
            Event::Advanced {
                stage,
                n_done,
                n_total,
            } => {
                let seconds = self.stage_started.elapsed().as_secs_f64();
                let left = if *n_done > 0 && n_done < n_total {
                    let left = seconds / *n_done as f64 * (n_total - n_done) as f64;
                    format!(", about {left:.0} s left")
                } else {
                    String::new()
                };
                self.renew(
                    &format!("{}: {n_done}/{n_total}{left}", words(*stage)),
                    false,
                );
            }
            Event::Finished {
                stage,
                summary,
                resumed,
            } => {
                let seconds = self.stage_started.elapsed().as_secs_f64();
                let how = match resumed {
                    Resumed::Nothing => format!("{seconds:.1} s"),
                    Resumed::Part => {
                        format!("{seconds:.1} s, some of it known from an earlier run")
                    }
                    Resumed::All => "known from an earlier run".to_owned(),
                };
                self.line(&format!("{}: {summary} ({how})", words(*stage)));
            }
            Event::Note(text) => self.line(text),
        }
    }

    /// A line that stays.
    pub fn line(&mut self, text: &str) {
        if self.quiet {
            return;
        }
        let clear = if self.is_terminal { "\r\x1b[2K" } else { "" };
        // Progress is no result: a closed terminal must not end the run.
        let _ = writeln!(std::io::stderr().lock(), "{clear}{}", self.plain(text));
    }

    fn renew(&mut self, text: &str, now: bool) {
        if self.quiet {
            return;
        }
        if self.is_terminal {
            let line: String = self.plain(text).chars().take(100).collect();
            let mut stderr = std::io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[2K{line}");
            let _ = stderr.flush();
        } else if now || self.last_line.elapsed() >= PLAIN_INTERVAL {
            self.last_line = Instant::now();
            self.line(text);
        }
    }

    /// What a repository wrote must not steer the terminal.
    fn plain(&self, text: &str) -> String {
        format!("{}: {text}", self.label)
            .chars()
            .filter(|c| !c.is_control())
            .collect()
    }
}

fn words(stage: Stage) -> &'static str {
    match stage {
        Stage::Measure => "measuring the tests",
        Stage::Synthesize => "writing candidates",
        Stage::Screen => "screening candidates",
        Stage::Prove => "proving tasks",
    }
}
