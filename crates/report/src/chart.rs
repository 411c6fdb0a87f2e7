//! Metric series over updates as SVG, with marks where a value is not an ordinary number.
//!
//! A line connects neighbouring recorded numbers only: it stops at what was not recorded and at
//! what is not a number, and goes on after it.

use temper_core::metric::MetricValue;
use temper_eval::metrics::{MetricLog, Series, irregular};

use crate::html::{Html, all, element, with_attributes};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 30.0;
/// Marks with a label of their own; further ones are marked without it.
const LABELS: usize = 6;
/// Marks drawn at most.
const MARKS: usize = 200;
/// Points drawn as dots; a longer series is its line alone.
const DOTS: usize = 80;

/// All series of a log, and its findings in words.
pub fn log(log: &MetricLog) -> Html {
    let findings = log
        .findings
        .iter()
        .map(|finding| element("li", "", finding.as_str()));
    let shown: Vec<Html> = findings.take(50).collect();
    let mut out = Html::none();
    if !shown.is_empty() {
        let left_out = log.findings.len() - shown.len();
        out.push(element("ul", "findings", all(shown)));
        if left_out > 0 {
            out.push(element(
                "p",
                "quiet",
                format!("{left_out} further findings"),
            ));
        }
    }
    out.push(element(
        "div",
        "charts",
        all(log.series.iter().map(|each| series(&log.updates, each))),
    ));
    out
}

/// One series.
pub fn series(updates: &[u64], series: &Series) -> Html {
    let points: Vec<(u64, MetricValue)> = updates
        .iter()
        .copied()
        .zip(series.values.iter().copied())
        .collect();
    let finite: Vec<f64> = points
        .iter()
        .filter_map(|(_, value)| value.finite())
        .collect();
    let marks: Vec<(u64, MetricValue, &str)> = points
        .iter()
        .filter_map(|&(update, value)| Some((update, value, irregular(value)?)))
        .collect();
    let n_missing = points
        .iter()
        .filter(|(_, value)| *value == MetricValue::NotRecorded)
        .count();
    let scale = Scale::of(updates, &finite);
    let mut content = scale.axes();
    content.extend(scale.line(&points));
    for (index, &(update, value, _)) in marks.iter().take(MARKS).enumerate() {
        content.extend(scale.mark(update, value, index < LABELS));
    }
    let mut label = format!("{}: {} numbers", series.name, finite.len());
    for (update, _, kind) in marks.iter().take(LABELS) {
        label += &format!(", {kind} at update {update}");
    }
    let mut caption = format!("{} of {} updates are numbers", finite.len(), points.len());
    if !marks.is_empty() {
        caption += &if marks.len() > MARKS {
            format!(
                ", {} are not, the first {MARKS} of these marked",
                marks.len()
            )
        } else {
            format!(", {} marked", marks.len())
        };
    }
    if n_missing > 0 {
        caption += &format!(", {n_missing} not recorded");
    }
    let svg = with_attributes(
        "svg",
        &[
            ("class", "chart"),
            ("role", "img"),
            ("aria-label", &label),
            ("viewBox", &format!("0 0 {WIDTH} {HEIGHT}")),
        ],
        all(content),
    );
    element(
        "figure",
        "",
        all([
            element(
                "figcaption",
                "",
                all([
                    element("strong", "", series.name.as_str()),
                    element("span", "quiet", format!(" {caption}")),
                ]),
            ),
            svg,
        ]),
    )
}

struct Scale {
    first: f64,
    last: f64,
    low: f64,
    high: f64,
}

impl Scale {
    fn of(updates: &[u64], values: &[f64]) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = match values {
            [] => (0.0, 1.0),
            // A constant lies in the middle; halves keep the range finite for huge values.
            _ if low == high => (
                low - low.abs().max(1.0) / 2.0,
                high + high.abs().max(1.0) / 2.0,
            ),
            _ => (low, high),
        };
        Scale {
            first: updates.first().map_or(0.0, |&update| update as f64),
            last: updates.last().map_or(1.0, |&update| update as f64),
            low: low.max(f64::MIN / 4.0),
            high: high.min(f64::MAX / 4.0),
        }
    }

    fn x(&self, update: u64) -> f64 {
        let span = self.last - self.first;
        let share = if span > 0.0 {
            (update as f64 - self.first) / span
        } else {
            0.5
        };
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let share = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }

    fn axes(&self) -> Vec<Html> {
        let mut out = Vec::new();
        for value in [self.low, self.low / 2.0 + self.high / 2.0, self.high] {
            let y = self.y(value);
            out.push(segment("grid", LEFT, y, WIDTH - RIGHT, y));
            out.push(label("axis end", LEFT - 8.0, y + 4.0, &number(value)));
        }
        let y = HEIGHT - 8.0;
        out.push(label("axis", LEFT, y, &format!("update {}", self.first)));
        if self.last > self.first {
            out.push(label(
                "axis end",
                WIDTH - RIGHT,
                y,
                &format!("{}", self.last),
            ));
        }
        out
    }

    fn line(&self, points: &[(u64, MetricValue)]) -> Vec<Html> {
        let mut out = Vec::new();
        for run in points.split(|(_, value)| value.finite().is_none()) {
            let places: Vec<(f64, f64)> = run
                .iter()
                .filter_map(|&(update, value)| Some((self.x(update), self.y(value.finite()?))))
                .collect();
            if places.len() > 1 {
                let path: Vec<String> = thinned(&places)
                    .iter()
                    .map(|(x, y)| format!("{x:.1},{y:.1}"))
                    .collect();
                out.push(with_attributes(
                    "polyline",
                    &[("class", "series"), ("points", &path.join(" "))],
                    Html::none(),
                ));
            }
            if points.len() <= DOTS || places.len() == 1 {
                out.extend(places.iter().map(|&(x, y)| {
                    with_attributes(
                        "circle",
                        &[
                            ("class", "point"),
                            ("cx", &format!("{x:.1}")),
                            ("cy", &format!("{y:.1}")),
                            ("r", "2.5"),
                        ],
                        Html::none(),
                    )
                }));
            }
        }
        out
    }

    fn mark(&self, update: u64, value: MetricValue, labelled: bool) -> Vec<Html> {
        let x = self.x(update);
        let (sign, y) = match value {
            MetricValue::PositiveInfinity => ("+\u{221e}", TOP - 8.0),
            MetricValue::NegativeInfinity => ("\u{2212}\u{221e}", HEIGHT - BOTTOM - 4.0),
            _ => ("NaN", TOP - 8.0),
        };
        let mut out = vec![segment("mark", x, TOP - 4.0, x, HEIGHT - BOTTOM)];
        if labelled {
            let class = if x > WIDTH - 90.0 { "mark end" } else { "mark" };
            let text = format!("{sign} at {update}");
            out.push(label(
                class,
                if x > WIDTH - 90.0 { x } else { x - 4.0 },
                y,
                &text,
            ));
        }
        out
    }
}

/// A long line with at most four points for each half unit of width: first, lowest, highest, last.
/// Nothing that could be seen at the chart's size is lost.
fn thinned(places: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut out = Vec::new();
    for column in places.chunk_by(|a, b| (2.0 * a.0).floor() == (2.0 * b.0).floor()) {
        if column.len() <= 4 {
            out.extend_from_slice(column);
            continue;
        }
        let by_height = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        out.extend(column.first());
        out.extend(column.iter().min_by(by_height));
        out.extend(column.iter().max_by(by_height));
        out.extend(column.last());
    }
    out
}

fn segment(class: &str, x1: f64, y1: f64, x2: f64, y2: f64) -> Html {
    let [x1, y1, x2, y2] = [x1, y1, x2, y2].map(|value| format!("{value:.1}"));
    with_attributes(
        "line",
        &[
            ("class", class),
            ("x1", &x1),
            ("y1", &y1),
            ("x2", &x2),
            ("y2", &y2),
        ],
        Html::none(),
    )
}

fn label(class: &str, x: f64, y: f64, text: &str) -> Html {
    let [x, y] = [x, y].map(|value| format!("{value:.1}"));
    with_attributes("text", &[("class", class), ("x", &x), ("y", &y)], text)
}

/// An axis value with three significant digits.
fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        "0".into()
    } else if (0.001..10_000.0).contains(&size) {
        let digits = (2 - size.log10().floor() as i32).clamp(0, 5) as usize;
        format!("{value:.digits$}")
    } else {
        format!("{value:.2e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(lines: &str) -> String {
        let metrics = MetricLog::read(lines.as_bytes()).unwrap();
        log(&metrics).as_str().to_owned()
    }

    #[test]
    fn marks_what_is_no_number_and_draws_the_rest() {
        let html = drawn(
            "{\"update\":1,\"loss\":2.0,\"kl\":0.1}\n\
             {\"update\":2,\"loss\":1.5,\"kl\":0.1}\n\
             {\"update\":3,\"loss\":\"NaN\",\"kl\":0.2}\n\
             {\"update\":4,\"loss\":1.25,\"kl\":\"Infinity\"}\n\
             {\"update\":5,\"loss\":1.0}\n",
        );
        assert!(html.contains("loss is not a number at update 3"));
        assert!(html.contains("kl is infinite at update 4"));
        assert!(html.contains("NaN at 3") && html.contains("+\u{221e} at 4"));
        // The line of the loss is in two runs around update 3; all seven numbers are points.
        assert_eq!(html.matches("<polyline").count(), 3);
        assert_eq!(html.matches("class=\"point\"").count(), 7);
        assert!(html.contains("4 of 5 updates are numbers, 1 marked"));
        assert!(html.contains("3 of 5 updates are numbers, 1 marked, 1 not recorded"));
        // "NaN" stands in labels only, never in a coordinate.
        for attribute in ["x", "y", "cx", "cy", "x1", "y1", "points"] {
            assert!(!html.contains(&format!(" {attribute}=\"NaN")));
            assert!(!html.contains(&format!(" {attribute}=\"inf")));
        }
    }

    #[test]
    fn a_long_log_stays_small() {
        let lines: String = (0..20_000)
            .map(|update| match update % 50 {
                0 => format!("{{\"update\":{update},\"loss\":\"NaN\",\"kl\":{update}}}\n"),
                _ => format!(
                    "{{\"update\":{update},\"loss\":1.5,\"kl\":{}}}\n",
                    update % 7
                ),
            })
            .collect();
        let html = drawn(&lines);
        assert!(html.len() < 400_000, "{}", html.len());
        assert!(html.contains("19600 of 20000 updates are numbers, 400 are not, the first 200"));
        // The highest value survives thinning.
        assert!(html.contains(&format!(",{TOP:.1}")));
    }

    #[test]
    fn extremes_do_not_break_the_scale() {
        for lines in [
            "",
            "{\"update\":1,\"x\":null}\n",
            "{\"update\":1,\"x\":\"NaN\"}\n",
            "{\"update\":1,\"x\":1e308}\n{\"update\":2,\"x\":-1e308}\n",
            "{\"update\":7,\"x\":0}\n",
            "{\"update\":0,\"x\":5}\n{\"update\":18446744073709551615,\"x\":5}\n",
        ] {
            let html = drawn(lines);
            assert!(
                !html.contains("=\"NaN\"") && !html.contains("=\"inf"),
                "{html}"
            );
        }
        assert_eq!(number(0.012345), "0.0123");
        assert_eq!(number(1234.5), "1234");
        assert_eq!(number(2e-9), "2.00e-9");
    }
}
