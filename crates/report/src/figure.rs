//! Bars and intervals as inline SVG.
//!
//! Positions are percentages in SVG attributes, so figures follow the width of the page without a
//! style attribute, which the page's content policy forbids.

use temper_eval::{Rate, pair::Difference};

use crate::html::{Html, all, element, with_attributes};

fn percent(share: f64) -> String {
    format!("{:.3}%", 100.0 * share.clamp(0.0, 1.0))
}

fn rectangle(class: &str, from: f64, to: f64, y: &str, height: &str, title: &str) -> Html {
    let (from, to) = (from.clamp(0.0, 1.0), to.clamp(0.0, 1.0));
    with_attributes(
        "rect",
        &[
            ("class", class),
            ("x", &percent(from)),
            ("width", &percent((to - from).max(0.0))),
            ("y", y),
            ("height", height),
        ],
        if title.is_empty() {
            Html::none()
        } else {
            element("title", "", title)
        },
    )
}

fn line(class: &str, x1: f64, x2: f64, y1: &str, y2: &str) -> Html {
    with_attributes(
        "line",
        &[
            ("class", class),
            ("x1", &percent(x1)),
            ("x2", &percent(x2)),
            ("y1", y1),
            ("y2", y2),
        ],
        Html::none(),
    )
}

fn svg(class: &str, height: &str, label: &str, content: Html) -> Html {
    with_attributes(
        "svg",
        &[
            ("class", class),
            ("role", "img"),
            ("aria-label", label),
            ("width", "100%"),
            ("height", height),
        ],
        content,
    )
}

/// A bar of shares that add up to at most 1: style key, share, and what it is in words.
pub fn stacked_bar(parts: &[(&str, f64, String)], label: &str) -> Html {
    let mut from = 0.0;
    let bars = parts.iter().map(|(key, share, title)| {
        let bar = rectangle(
            &format!("fill-{key}"),
            from,
            from + share,
            "0",
            "100%",
            title,
        );
        from += share;
        bar
    });
    svg("bar", "22", label, all(bars.collect::<Vec<_>>()))
}

/// A rate on the scale from 0 to 1: a thin line for the interval, a thick one for the bounds.
pub fn rate(rate: &Rate) -> Html {
    let mut content: Vec<Html> = [0.0, 0.25, 0.5, 0.75, 1.0]
        .iter()
        .map(|&at| line("grid", at, at, "0", "100%"))
        .collect();
    if let Some(interval) = rate.interval {
        content.extend(whisker(interval.lower, interval.upper, "50%"));
    }
    if let Some(bounds) = rate.bounds {
        if rate.n_lost > 0 {
            content.push(rectangle(
                "fill-lost",
                bounds.lower,
                bounds.upper,
                "30%",
                "40%",
                "bounds: everything lost unsolved, and solved",
            ));
        }
        content.push(dot(bounds.lower, "50%"));
    }
    svg("interval", "34", &rate.sentence(), all(content))
}

fn whisker(lower: f64, upper: f64, y: &str) -> Vec<Html> {
    let (top, bottom) = match y {
        "32%" => ("18%", "46%"),
        "72%" => ("58%", "86%"),
        _ => ("32%", "68%"),
    };
    vec![
        line("whisker", lower, upper, y, y),
        line("whisker", lower, lower, top, bottom),
        line("whisker", upper, upper, top, bottom),
    ]
}

fn dot(at: f64, y: &str) -> Html {
    with_attributes(
        "circle",
        &[
            ("class", "dot"),
            ("cx", &percent(at)),
            ("cy", y),
            ("r", "6"),
        ],
        Html::none(),
    )
}

/// The ends of the scale of a difference: the smallest of a few round numbers that holds it.
pub fn difference_scale(difference: &Difference) -> f64 {
    let ends = [difference.by_task, difference.by_source_group]
        .into_iter()
        .flatten()
        .flat_map(|interval| [interval.lower.abs(), interval.upper.abs()]);
    let widest = ends
        .chain(
            difference
                .bounds
                .iter()
                .flat_map(|b| [b.lower.abs(), b.upper.abs()]),
        )
        .fold(0.0, f64::max);
    [0.05, 0.1, 0.25, 0.5]
        .into_iter()
        .find(|&scale| widest <= scale)
        .unwrap_or(1.0)
}

/// A paired difference around zero, with the interval over tasks above that over source groups.
pub fn difference(difference: &Difference, label: &str) -> Html {
    let scale = difference_scale(difference);
    let place = |value: f64| (value / scale + 1.0) / 2.0;
    let mut content: Vec<Html> = [0.0, 0.25, 0.75, 1.0]
        .iter()
        .map(|&at| line("grid", at, at, "0", "100%"))
        .collect();
    content.push(line("zero", 0.5, 0.5, "0", "100%"));
    if let Some(bounds) = difference.bounds
        && difference.n_unknown > 0
    {
        content.push(rectangle(
            "fill-lost",
            place(bounds.lower),
            place(bounds.upper),
            "0",
            "100%",
            "bounds: everything lost for the baseline, and for the candidate",
        ));
    }
    for (interval, y) in [
        (difference.by_task, "32%"),
        (difference.by_source_group, "72%"),
    ] {
        if let Some(interval) = interval {
            content.extend(whisker(place(interval.lower), place(interval.upper), y));
        }
        if let Some(estimate) = difference.estimate {
            content.push(dot(place(estimate), y));
        }
    }
    svg("interval", "64", label, all(content))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_stay_on_the_scale() {
        let html = stacked_bar(
            &[("solved", 0.5, "a".into()), ("lost", 7.0, "b".into())],
            "x",
        );
        assert!(
            html.as_str().contains("x=\"50.000%\" width=\"50.000%\""),
            "{html:?}"
        );
        assert!(!html.as_str().contains("style="));
    }
}
