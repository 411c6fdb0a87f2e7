//! How fast training went before: what a plan's time is estimated from.

use serde_json::Value;

/// Tokens a second in the updates of a run's `metrics.jsonl`: all tokens over all seconds, the first
/// update left out where there are others, since it compiles and warms up. `None` where no update
/// is recorded; there is no other guess.
pub fn tokens_per_second(metrics: &[u8]) -> Option<f64> {
    let updates: Vec<(f64, f64)> = metrics
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Value>(line).ok())
        .filter(|line| line["event"] == "update")
        .filter_map(|line| {
            let metrics = &line["metrics"];
            Some((metrics["tokens"].as_f64()?, metrics["seconds"].as_f64()?))
        })
        .collect();
    let counted = match updates.as_slice() {
        [_, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    let tokens: f64 = counted.iter().map(|it| it.0).sum();
    let seconds: f64 = counted.iter().map(|it| it.1).sum();
    (seconds > 0.0).then(|| tokens / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_measured_or_absent() {
        let line = |tokens: u32, seconds: f64| {
            let text =
                r#"{"at":1.0,"event":"update","update":1,"metrics":{"tokens":T,"seconds":S}}"#;
            let text = text.replace('T', &tokens.to_string());
            text.replace('S', &seconds.to_string())
        };
        let log = |lines: &[String]| lines.join("\n").into_bytes();
        assert_eq!(tokens_per_second(b""), None);
        assert_eq!(
            tokens_per_second(b"{\"event\":\"begun\"}\nnonsense\n"),
            None
        );
        assert_eq!(tokens_per_second(&log(&[line(100, 4.0)])), Some(25.0));
        let all = [line(100, 50.0), line(100, 1.0), line(300, 1.0)];
        assert_eq!(tokens_per_second(&log(&all)), Some(200.0));
        assert_eq!(tokens_per_second(&log(&[line(100, 0.0)])), None);
    }
}
