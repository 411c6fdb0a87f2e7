//! The events of a training run as a metric log.
//!
//! A run's `metrics.jsonl` has one event a line. Its updates are the log's lines; what it diagnosed
//! and where it was stopped become findings.

use serde_json::{Map, Value};

use crate::metrics::{MetricLog, MetricLogError};

/// Whether a file holds events and not the plain lines of a metric log.
pub fn is_events(bytes: &[u8]) -> bool {
    let first = bytes.split(|byte| *byte == b'\n').next();
    first
        .and_then(|line| serde_json::from_slice::<Value>(line).ok())
        .is_some_and(|line| line["event"].is_string())
}

/// Reads the events of a run. A last line without its line break was being written.
///
/// # Errors
/// When a line is no event, or updates do not grow.
pub fn of_events(bytes: &[u8]) -> Result<MetricLog, MetricLogError> {
    let mut lines = Vec::new();
    let mut findings = Vec::new();
    for (index, raw) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if !raw.ends_with(b"\n") {
            break;
        }
        let wrong = |reason: String| MetricLogError::Line {
            line: index + 1,
            reason,
        };
        let event: Value = serde_json::from_slice(raw).map_err(|error| wrong(error.to_string()))?;
        let text = |key: &str| event[key].as_str().unwrap_or_default().to_owned();
        match event["event"].as_str() {
            None => return Err(wrong("it is no event".into())),
            Some("update") => {
                let Value::Object(metrics) = &event["metrics"] else {
                    return Err(wrong("an update without metrics".into()));
                };
                let mut line = Map::new();
                line.insert("update".into(), event["update"].clone());
                line.extend(metrics.clone());
                lines.extend(Value::Object(line).to_string().into_bytes());
                lines.push(b'\n');
            }
            Some("diagnosis") => findings.push(format!(
                "{} at update {}: {}",
                text("name"),
                event["update"],
                text("text")
            )),
            Some("stopped") => findings.push(format!(
                "stopped after update {}: {}",
                event["update"],
                text("reason")
            )),
            Some(_) => {}
        }
    }
    let mut log = MetricLog::read(&lines)?;
    log.findings.extend(findings);
    Ok(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_are_lines_and_diagnoses_are_findings() {
        let events = br#"{"at":1.5,"event":"begun","total_updates":2}
{"at":1.6,"event":"update","update":1,"applied":true,"metrics":{"loss":2.0,"reward_margin":null}}
{"at":1.7,"event":"diagnosis","update":1,"name":"no_gradient","text":"nothing can be learned"}
{"at":1.8,"event":"update","update":2,"applied":false,"metrics":{"loss":"NaN"}}
{"at":1.9,"event":"upda"#;
        assert!(is_events(events));
        assert!(!is_events(b"{\"update\":1,\"loss\":2.0}\n"));
        let log = of_events(events).unwrap();
        assert_eq!(log.updates, [1, 2]);
        assert_eq!(log.series[0].name, "loss");
        assert_eq!(
            log.findings,
            [
                "loss is not a number at update 2",
                "no_gradient at update 1: nothing can be learned"
            ]
        );
        assert!(of_events(b"{\"update\":1}\n").is_err());
        assert!(of_events(b"{\"event\":\"update\",\"update\":1}\n").is_err());
    }
}
