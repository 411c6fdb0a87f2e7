//! Shows a training run's events: loss, speed, memory, time left.

use std::io;

use temper_core::metric::MetricValue;
use temper_train::{Event, EventSink, Metric, events::UpdateRecord};

use crate::live_line::{LiveLine, PLAIN_INTERVAL, duration};

/// Prints to standard error.
pub struct TrainingView {
    label: String,
    line: LiveLine,
    /// When the first update of this process began, and how many were done by then.
    started: Option<(f64, u64)>,
    last_line: f64,
}

impl TrainingView {
    /// The view of the run called `label`.
    pub fn new(label: &str, quiet: bool) -> Self {
        TrainingView {
            label: label.to_owned(),
            line: LiveLine::new(quiet),
            started: None,
            last_line: f64::NEG_INFINITY,
        }
    }

    fn say(&self, text: &str) {
        self.line.line(&format!("{}: {text}", self.label));
    }

    fn update(&mut self, at: f64, update: &UpdateRecord) {
        let (began, n_before) = *self.started.get_or_insert((at, update.update - 1));
        let text = summary(update, at - began, n_before);
        let text = format!("{}: {text}", self.label);
        let is_last = update.update == update.total_updates;
        if self.line.is_terminal && !is_last {
            self.line.renew(&text);
        } else if is_last
            || self.last_line == f64::NEG_INFINITY
            || at - self.last_line >= PLAIN_INTERVAL.as_secs_f64()
        {
            self.last_line = at;
            self.line.line(&text);
        }
    }
}

/// An update in one line, `elapsed` seconds after `n_before` updates were done.
fn summary(update: &UpdateRecord, elapsed: f64, n_before: u64) -> String {
    let metrics = &update.metrics;
    let number = |metric: Metric| metrics.get(metric).finite();
    let loss = match metrics.get(Metric::Loss) {
        MetricValue::Finite(loss) => format!("{loss:.4}"),
        MetricValue::NotRecorded => "not recorded".into(),
        MetricValue::NotANumber => "NaN".into(),
        MetricValue::PositiveInfinity => "infinite".into(),
        MetricValue::NegativeInfinity => "minus infinite".into(),
    };
    let mut text = format!(
        "update {}/{}, loss {loss}",
        update.update, update.total_updates
    );
    if let Some(rate) = number(Metric::TokensPerSecond) {
        text.push_str(&format!(", {rate:.0} tokens/s"));
    }
    if let Some(bytes) = number(Metric::MemoryPeak) {
        text.push_str(&format!(", {:.2} GiB", bytes / f64::from(1 << 30)));
    }
    let n_here = update.update - n_before;
    let n_left = update.total_updates - update.update;
    if n_here > 0 && n_left > 0 && elapsed > 0.0 {
        let left = elapsed / n_here as f64 * n_left as f64;
        text.push_str(&format!(", about {} left", duration(left)));
    }
    text
}

impl EventSink for TrainingView {
    fn record(&mut self, at: f64, event: &Event) -> io::Result<()> {
        match event {
            Event::Begun(begun) => {
                self.say(&format!(
                    "{}, {} rows of {} tokens ({} supervised), {} updates",
                    begun.objective,
                    begun.n_rows,
                    begun.n_tokens,
                    begun.n_supervised,
                    begun.total_updates
                ));
                for line in begun.memory.lines() {
                    self.line.line(&format!("  {line}"));
                }
                if let Some(snapshot) = &begun.from_snapshot {
                    self.say(&format!(
                        "goes on after update {} from {}",
                        begun.from_update,
                        snapshot.display()
                    ));
                }
                self.started = Some((at, begun.from_update));
            }
            Event::PassedOver { snapshot, reason } => {
                self.say(&format!("{} is not used: {reason}", snapshot.display()));
            }
            Event::SelfTest(test) => {
                let errors = test.splits.iter().map(|split| split.gradient_error);
                let most = errors.fold(0.0, f64::max);
                self.say(&format!(
                    "self-test: gradients of one batch split in {} ways differ by at most \
                     {most:.1e} ({:.0e} is allowed)",
                    test.splits.len(),
                    test.tolerance
                ));
                self.started = self.started.map(|(_, n_before)| (at, n_before));
            }
            Event::Reference { n_scored, n_cached } => {
                self.say(&format!(
                    "reference: {n_scored} pairs scored, {n_cached} known from before"
                ));
                self.started = self.started.map(|(_, n_before)| (at, n_before));
            }
            Event::Update(update) => self.update(at, update),
            Event::Snapshot { snapshot, .. } => {
                self.say(&format!("snapshot {}", snapshot.display()));
            }
            Event::Diagnosis { name, text, .. } => self.say(&format!("{name}: {text}")),
            Event::Stopped { update, reason } => {
                self.say(&format!("stopped after update {update}: {reason}"));
            }
            Event::Finished { update } => self.say(&format!("{update} updates are done")),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use temper_train::{Metrics, order::Position};

    use super::*;

    #[test]
    fn an_update_is_one_line_without_invented_numbers() {
        let mut metrics = Metrics::default();
        metrics.set(Metric::Loss, 1.25);
        metrics.set(Metric::TokensPerSecond, 1234.5);
        metrics.set(Metric::MemoryPeak, 3.0 * f64::from(1 << 30));
        let mut update = UpdateRecord {
            update: 6,
            total_updates: 10,
            position: Position {
                epoch: 0,
                window: 5,
            },
            applied: true,
            metrics,
        };
        assert_eq!(
            summary(&update, 30.0, 4),
            "update 6/10, loss 1.2500, 1234 tokens/s, 3.00 GiB, about 1 min 00 s left"
        );
        update.metrics = Metrics::default();
        update.metrics.set(Metric::Loss, f64::NAN);
        assert_eq!(summary(&update, 0.0, 5), "update 6/10, loss NaN");
    }
}
