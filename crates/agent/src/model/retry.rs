//! Asking again: which errors, how often, how long to wait.
//!
//! Waits are exponential with full jitter (a uniform draw from zero to the current bound), drawn
//! from the request's seed so that a run can be repeated. A server's own `Retry-After` is
//! honoured and never undercut. The clock is a trait: tests do not sleep.

use std::time::{Duration, Instant, SystemTime};

use temper_core::trajectory::Attempt;
use ureq::http::HeaderMap;

use super::{ModelError, ModelErrorClass};

/// How much earlier than asked a timer may go off.
const TIMER_SLACK: Duration = Duration::from_millis(5);

/// Waiting and the time of day, so that tests can do without both.
pub trait Clock: Send + Sync {
    /// Blocks the calling thread.
    fn sleep(&self, duration: Duration);

    /// Seconds since 1970, for `Retry-After` headers that name a date.
    fn unix_seconds(&self) -> u64;
}

/// The real clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration);
    }

    fn unix_seconds(&self) -> u64 {
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.as_secs())
    }
}

/// How often to ask and how long to wait.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Attempts in all, the first included (default 10, as mini-swe-agent has it).
    pub max_attempts: u32,
    /// Upper bound of the first wait; it doubles with each further one (default 4 s).
    pub first_wait: Duration,
    /// No backoff is longer than this (default 60 s).
    pub longest_wait: Duration,
    /// A `Retry-After` beyond this ends the call instead of being waited for (default 600 s).
    pub longest_retry_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            max_attempts: 10,
            first_wait: Duration::from_secs(4),
            longest_wait: Duration::from_secs(60),
            longest_retry_after: Duration::from_secs(600),
        }
    }
}

impl RetryPolicy {
    /// The wait after attempt `number` (counted from 1): uniform between zero and
    /// `first_wait * 2^(number - 1)`, at most `longest_wait`; the same for the same seed.
    pub fn backoff(&self, seed: u64, number: u32) -> Duration {
        let doublings = number.saturating_sub(1).min(31);
        let bound = self
            .first_wait
            .saturating_mul(1 << doublings)
            .min(self.longest_wait);
        bound.mul_f64(uniform(seed, number))
    }
}

/// A failed attempt.
#[derive(Clone, Debug)]
pub struct Failed {
    /// What kind of error it is.
    pub class: ModelErrorClass,
    /// Whether asking again can help.
    pub retry: bool,
    /// HTTP status, where there was an answer.
    pub status: Option<u16>,
    /// The cause in words, without secrets.
    pub message: String,
    /// What the server asked for.
    pub retry_after: Option<Duration>,
}

/// A successful attempt.
#[derive(Clone, Debug)]
pub struct Succeeded<T> {
    /// What it gave.
    pub value: T,
    /// HTTP status.
    pub status: Option<u16>,
    /// What is worth knowing about it although it succeeded.
    pub note: Option<String>,
}

/// Runs `attempt` until it succeeds, fails for good, or attempts or time run out. `attempt` is
/// given its number, counted from 1.
///
/// A wait that would end after the deadline is not begun: the call fails at once with the class
/// of the last error, because it was the server that was not available and not the agent that was
/// slow. An attempt that is itself cut by the deadline fails as [`ModelErrorClass::Deadline`].
pub fn with_retries<T>(
    policy: &RetryPolicy,
    clock: &dyn Clock,
    seed: u64,
    deadline: Option<Instant>,
    mut attempt: impl FnMut(u32) -> Result<Succeeded<T>, Failed>,
) -> Result<(T, Vec<Attempt>), ModelError> {
    // A timer that was set to the deadline may go off a moment before it.
    let passed = || deadline.is_some_and(|deadline| Instant::now() + TIMER_SLACK >= deadline);
    let mut attempts = Vec::new();
    for number in 1.. {
        if passed() {
            return Err(ModelError {
                class: ModelErrorClass::Deadline,
                message: "the deadline passed before the next attempt".into(),
                attempts,
            });
        }
        let started = Instant::now();
        let outcome = attempt(number);
        let wall_seconds = started.elapsed().as_secs_f64();
        let failed = match outcome {
            Ok(succeeded) => {
                attempts.push(Attempt {
                    status: succeeded.status,
                    error: None,
                    message: succeeded.note,
                    wall_seconds,
                    waited_seconds: 0.0,
                });
                return Ok((succeeded.value, attempts));
            }
            Err(failed) => failed,
        };
        let mut class = failed.class;
        if failed.retry && passed() {
            class = ModelErrorClass::Deadline;
        }
        attempts.push(Attempt {
            status: failed.status,
            error: Some(class.name().into()),
            message: Some(failed.message.clone()),
            wall_seconds,
            waited_seconds: 0.0,
        });
        let stop = |why: &str, attempts| ModelError {
            class,
            message: if why.is_empty() {
                failed.message.clone()
            } else {
                format!("{} ({why})", failed.message)
            },
            attempts,
        };
        if class == ModelErrorClass::Deadline || !failed.retry {
            return Err(stop("", attempts));
        }
        if number >= policy.max_attempts {
            return Err(stop(&format!("after {number} attempts"), attempts));
        }
        let wait = match failed.retry_after {
            Some(asked) if asked > policy.longest_retry_after => {
                let why = format!(
                    "the server asks to wait {} s, the most that is waited for is {} s",
                    asked.as_secs(),
                    policy.longest_retry_after.as_secs()
                );
                return Err(stop(&why, attempts));
            }
            // A quarter more at most, so that clients that were turned away together do not come
            // back together.
            Some(asked) if !asked.is_zero() => asked + (asked / 4).mul_f64(uniform(seed, number)),
            _ => policy.backoff(seed, number),
        };
        if deadline.is_some_and(|deadline| Instant::now() + wait >= deadline) {
            let why = format!(
                "after {number} attempts; waiting {:.1} s more would pass the deadline",
                wait.as_secs_f64()
            );
            return Err(stop(&why, attempts));
        }
        clock.sleep(wait);
        if let Some(last) = attempts.last_mut() {
            last.waited_seconds = wait.as_secs_f64();
        }
    }
    unreachable!("the loop above ends only by returning")
}

/// What the server asks for: `retry-after-ms`, or `Retry-After` as seconds or as an HTTP date.
/// Anything else is as good as absent.
pub fn retry_after(headers: &HeaderMap, now_unix_seconds: u64) -> Option<Duration> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    if let Some(milliseconds) = text("retry-after-ms").and_then(plain_number) {
        return Some(Duration::from_secs_f64(milliseconds / 1000.0));
    }
    let value = text("retry-after")?;
    if let Some(seconds) = plain_number(value) {
        return Some(Duration::from_secs_f64(seconds));
    }
    // The server's own clock is the one its date is meant by, where it says what time it is.
    let now = text("date").and_then(http_date).unwrap_or(now_unix_seconds);
    Some(Duration::from_secs(http_date(value)?.saturating_sub(now)))
}

/// A non-negative decimal number, cut at a year so that it stays a duration.
fn plain_number(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let number: f64 = plain.then(|| text.parse().ok()).flatten()?;
    Some(number.min(366.0 * 86_400.0))
}

/// Seconds since 1970 of an HTTP date (RFC 9110, section 5.6.7), in any of its three forms.
fn http_date(text: &str) -> Option<u64> {
    let words: Vec<&str> = text
        .split([' ', ',', '-'])
        .filter(|word| !word.is_empty())
        .collect();
    let (day, month, year, time) = match words.as_slice() {
        // Sun, 06 Nov 1994 08:49:37 GMT, and Sunday, 06-Nov-94 08:49:37 GMT.
        [_, day, month, year, time, "GMT"] => (*day, *month, *year, *time),
        // Sun Nov  6 08:49:37 1994.
        [_, month, day, time, year] => (*day, *month, *year, *time),
        _ => return None,
    };
    let month = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ]
    .iter()
    .position(|name| *name == month)? as u64
        + 1;
    let day: u64 = digits(day, 2)?;
    let year = match year.len() {
        // Two digits mean the century that keeps the date near our own time.
        2 => digits(year, 2).map(|y| if y < 70 { 2000 + y } else { 1900 + y })?,
        _ => digits(year, 4)?,
    };
    let mut clock = time.split(':').map(|part| digits(part, 2));
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let valid = clock.next().is_none()
        && (1970..=9999).contains(&year)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !valid {
        return None;
    }
    // Days since 1970-03-01 shifted so that the leap day is the last of its year.
    let (year, month) = if month <= 2 {
        (year - 1, month + 9)
    } else {
        (year, month - 3)
    };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    let since_1970 = days.checked_sub(719_468)?;
    Some(since_1970 * 86_400 + hour * 3600 + minute * 60 + second)
}

fn digits(text: &str, longest: usize) -> Option<u64> {
    let plain = !text.is_empty() && text.len() <= longest;
    (plain && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

/// A number in [0, 1) that depends on nothing but its arguments.
fn uniform(seed: u64, number: u32) -> f64 {
    let bits = mix(seed ^ mix(u64::from(number)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// The finalizer of SplitMix64: spreads every input bit over the output.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_three_forms_of_an_http_date() {
        // The example of RFC 9110; `date -u -d … +%s` gives the numbers.
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(http_date(text), Some(784_111_777), "{text}");
        }
        assert_eq!(
            http_date("Thu, 29 Feb 2024 23:59:60 GMT"),
            Some(1_709_251_200)
        );
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        for text in [
            "",
            "soon",
            "Sun, 06 Nov 1994 08:49:37 PST",
            "Sun, 06 Nov 1994 25:49:37 GMT",
            "Sun, 99 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 99999999999999999999 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
        ] {
            assert_eq!(http_date(text), None, "{text}");
        }
    }

    #[test]
    fn jitter_is_repeatable_bounded_and_not_constant() {
        let policy = RetryPolicy::default();
        let waits: Vec<_> = (1..=40).map(|n| policy.backoff(7, n)).collect();
        assert_eq!(
            waits,
            (1..=40).map(|n| policy.backoff(7, n)).collect::<Vec<_>>()
        );
        assert!(waits[0] <= policy.first_wait);
        assert!(waits.iter().all(|wait| *wait <= policy.longest_wait));
        let seeds: std::collections::BTreeSet<_> = (0..50).map(|s| policy.backoff(s, 3)).collect();
        assert_eq!(seeds.len(), 50);
    }

    #[test]
    fn the_mixer_gives_the_published_sequence() {
        // First outputs of SplitMix64 with seed 1234567 (Vigna's reference program).
        let outputs: Vec<u64> = (0..3u64)
            .map(|n| mix(1_234_567u64.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
            .collect();
        assert_eq!(
            outputs,
            [
                6457827717110365317,
                3203168211198807973,
                9817491932198370423
            ]
        );
    }
}
