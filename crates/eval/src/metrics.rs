//! Reads logs of numbers over updates, and keeps apart what is not a number, what is infinite,
//! and what was not recorded.
//!
//! A log is JSON Lines. Each line is an object with `update`, a whole number that grows from line
//! to line, and any number of named [`MetricValue`]s beside it. The bare tokens `NaN` and
//! `Infinity`, which some writers emit, are not JSON and are refused with their line.

use serde::{Deserialize, Serialize, de};
use temper_core::metric::MetricValue;

/// A metric log by series.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricLog {
    /// Every update of the log, in order.
    pub updates: Vec<u64>,
    /// One series per name, in the order in which names appear.
    pub series: Vec<Series>,
    /// Values that are not ordinary numbers, and what else a reader should know, in words.
    pub findings: Vec<String>,
}

/// One metric over all updates of a log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// Its name in the log.
    pub name: String,
    /// One value for each of [`MetricLog::updates`]; not recorded where the line lacks the name.
    pub values: Vec<MetricValue>,
}

/// The log breaks its format.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum MetricLogError {
    /// A line is not an object of metric values.
    #[error("read line {line} of a metric log: {reason}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// Updates do not grow.
    #[error("read line {line} of a metric log: update {update} follows update {previous}")]
    Order {
        /// Counted from 1.
        line: usize,
        /// The line's update.
        update: u64,
        /// The update before it.
        previous: u64,
    },
    /// There are too many names for a chart or a person.
    #[error("read line {line} of a metric log: more than {MAX_SERIES} names")]
    TooManySeries {
        /// Counted from 1.
        line: usize,
    },
}

/// The most names a log may have; it bounds the memory that a hostile log can take.
pub const MAX_SERIES: usize = 512;

impl MetricLog {
    /// Reads a whole log. A last line without its line break that does not parse was being written
    /// when the run was cut off: it is left out and noted.
    pub fn read(bytes: &[u8]) -> Result<Self, MetricLogError> {
        let mut log = MetricLog::default();
        let mut positions = std::collections::HashMap::<String, usize>::new();
        let mut lines = bytes
            .split_inclusive(|&byte| byte == b'\n')
            .enumerate()
            .peekable();
        while let Some((index, raw)) = lines.next() {
            let line = index + 1;
            let is_cut = lines.peek().is_none() && !raw.ends_with(b"\n");
            let raw = raw.trim_ascii();
            if raw.is_empty() {
                continue;
            }
            let row: Row = match serde_json::from_slice(raw) {
                Ok(row) => row,
                Err(_) if is_cut => {
                    log.findings
                        .push(format!("line {line} is incomplete and was left out"));
                    break;
                }
                Err(error) => {
                    return Err(MetricLogError::Line {
                        line,
                        reason: error.to_string(),
                    });
                }
            };
            if let Some(&previous) = log.updates.last()
                && row.update <= previous
            {
                return Err(MetricLogError::Order {
                    line,
                    update: row.update,
                    previous,
                });
            }
            let n_before = log.updates.len();
            log.updates.push(row.update);
            for (name, value) in row.values {
                if let Some(kind) = irregular(value) {
                    log.findings
                        .push(format!("{name} is {kind} at update {}", row.update));
                }
                let position = match positions.get(&name) {
                    Some(&position) => position,
                    None if log.series.len() == MAX_SERIES => {
                        return Err(MetricLogError::TooManySeries { line });
                    }
                    None => {
                        log.series.push(Series {
                            name: name.clone(),
                            values: vec![MetricValue::NotRecorded; n_before],
                        });
                        positions.insert(name, log.series.len() - 1);
                        log.series.len() - 1
                    }
                };
                log.series[position].values.push(value);
            }
            for series in &mut log.series {
                series
                    .values
                    .resize(log.updates.len(), MetricValue::NotRecorded);
            }
        }
        Ok(log)
    }
}

/// The kind of a value that is recorded but is not an ordinary number, in words.
pub fn irregular(value: MetricValue) -> Option<&'static str> {
    match value {
        MetricValue::Finite(_) | MetricValue::NotRecorded => None,
        MetricValue::NotANumber => Some("not a number"),
        MetricValue::PositiveInfinity => Some("infinite"),
        MetricValue::NegativeInfinity => Some("negative infinite"),
    }
}

struct Row {
    update: u64,
    values: Vec<(String, MetricValue)>,
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RowVisitor)
    }
}

/// Written by hand because a derived map would silently keep the last of two equal keys.
struct RowVisitor;

impl<'de> de::Visitor<'de> for RowVisitor {
    type Value = Row;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object with `update` and metric values")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Row, A::Error> {
        use de::Error;
        let mut update = None;
        let mut values: Vec<(String, MetricValue)> = Vec::new();
        let mut names = std::collections::HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if name.is_empty() || name.len() > 200 || name.chars().any(char::is_control) {
                return Err(A::Error::custom(format!(
                    "expected a name of 1 to 200 bytes without control characters, got {:?}",
                    name.chars().take(40).collect::<String>()
                )));
            }
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format!(
                    "the name {name:?} is there twice"
                )));
            }
            if name == "update" {
                update = Some(map.next_value::<u64>()?);
            } else {
                values.push((name, map.next_value()?));
            }
        }
        let update = update.ok_or_else(|| A::Error::missing_field("update"))?;
        Ok(Row { update, values })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MetricValue::*;

    const LOG: &str = "\
{\"update\":1,\"loss\":2.0,\"kl\":0.1}
{\"update\":2,\"loss\":1.5,\"kl\":null}
{\"update\":3,\"loss\":\"NaN\",\"kl\":0.2}
{\"update\":4,\"loss\":1.25,\"kl\":\"Infinity\",\"reward\":0.0}
{\"update\":6,\"kl\":\"-Infinity\"}
";

    #[test]
    fn every_kind_of_value_stays_apart() {
        let log = MetricLog::read(LOG.as_bytes()).unwrap();
        assert_eq!(log.updates, [1, 2, 3, 4, 6]);
        let names: Vec<_> = log
            .series
            .iter()
            .map(|series| series.name.as_str())
            .collect();
        assert_eq!(names, ["loss", "kl", "reward"]);
        assert_eq!(
            log.series[0].values,
            [
                Finite(2.0),
                Finite(1.5),
                NotANumber,
                Finite(1.25),
                NotRecorded
            ]
        );
        assert_eq!(
            log.series[1].values,
            [
                Finite(0.1),
                NotRecorded,
                Finite(0.2),
                PositiveInfinity,
                NegativeInfinity
            ]
        );
        assert_eq!(
            log.series[2].values,
            [
                NotRecorded,
                NotRecorded,
                NotRecorded,
                Finite(0.0),
                NotRecorded
            ]
        );
        assert_eq!(
            log.findings,
            [
                "loss is not a number at update 3",
                "kl is infinite at update 4",
                "kl is negative infinite at update 6"
            ]
        );
    }

    #[test]
    fn comes_out_as_strict_json_and_back() {
        let log = MetricLog::read(LOG.as_bytes()).unwrap();
        let json = serde_json::to_string(&log).unwrap();
        assert!(json.contains("[2.0,1.5,\"NaN\",1.25,null]"), "{json}");
        assert_eq!(serde_json::from_str::<MetricLog>(&json).unwrap(), log);
    }

    #[test]
    fn a_broken_log_is_refused_with_its_line() {
        for (log, line) in [
            ("{\"update\":1,\"loss\":NaN}\n", 1),
            ("{\"update\":1}\n{\"update\":2,\"loss\":\"nan\"}\n", 2),
            ("{\"update\":1,\"loss\":1,\"loss\":2}\n", 1),
            ("{\"loss\":1}\n", 1),
            ("{\"update\":-1}\n", 1),
            ("{\"update\":1.5}\n", 1),
            ("{\"update\":1,\"\\u001b[2J\":1}\n", 1),
            ("{\"update\":1,\"loss\":{}}\n", 1),
            ("{\"update\":1,\"loss\":1e999}\n", 1),
            ("[]\n", 1),
            ("\u{fffd}\n", 1),
        ] {
            match MetricLog::read(log.as_bytes()) {
                Err(MetricLogError::Line { line: got, .. }) => assert_eq!(got, line, "{log}"),
                other => panic!("{log}: {other:?}"),
            }
        }
        assert_eq!(
            MetricLog::read(b"{\"update\":2}\n{\"update\":2}\n"),
            Err(MetricLogError::Order {
                line: 2,
                update: 2,
                previous: 2
            })
        );
        let many: String = (0..=MAX_SERIES).map(|i| format!(",\"m{i}\":1")).collect();
        assert_eq!(
            MetricLog::read(format!("{{\"update\":1{many}}}\n").as_bytes()),
            Err(MetricLogError::TooManySeries { line: 1 })
        );
    }

    #[test]
    fn a_cut_off_log_keeps_its_whole_lines() {
        let log = MetricLog::read(b"{\"update\":1,\"loss\":1}\n{\"update\":2,\"lo").unwrap();
        assert_eq!(log.updates, [1]);
        assert_eq!(log.findings, ["line 2 is incomplete and was left out"]);
        assert_eq!(MetricLog::read(b"").unwrap(), MetricLog::default());
        assert_eq!(MetricLog::read(b"\n\n").unwrap(), MetricLog::default());
    }
}
