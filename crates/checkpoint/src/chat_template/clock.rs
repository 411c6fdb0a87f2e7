//! The date that a template may print, given by the caller.

use minijinja::{Error, ErrorKind};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// A moment as a calendar and a clock show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CivilTime {
    /// The year of the Gregorian calendar.
    pub year: i64,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// 0 to 23.
    pub hour: u8,
    /// 0 to 59.
    pub minute: u8,
    /// 0 to 59.
    pub second: u8,
}

impl CivilTime {
    /// The moment in UTC that is so many seconds after 1970-01-01.
    ///
    /// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
    pub fn from_unix_seconds(seconds: i64) -> Self {
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        };
        Self {
            year: year_of_era + era * 400 + i64::from(month <= 2),
            month: month as u8,
            day: (day_of_year - (153 * month_from_march + 2) / 5 + 1) as u8,
            hour: (second / 3_600) as u8,
            minute: (second / 60 % 60) as u8,
            second: (second % 60) as u8,
        }
    }

    /// Writes the moment as C's `strftime` in the C locale, with the conversions that stand for
    /// dates and times of day.
    ///
    /// Errors: a conversion that is none of `%Y %y %m %d %e %B %b %h %A %a %H %I %M %S %p %j %F %T %D
    /// %%` (each also with `-`, without padding).
    pub(super) fn strftime(&self, format: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut rest = format.chars();
        while let Some(character) = rest.next() {
            if character != '%' {
                out.push(character);
                continue;
            }
            let mut conversion = rest.next();
            let bare = conversion == Some('-');
            if bare {
                conversion = rest.next();
            }
            out.push_str(&self.conversion(conversion, bare)?);
        }
        Ok(out)
    }

    fn conversion(&self, conversion: Option<char>, bare: bool) -> Result<String, Error> {
        let two = |number: u8| match bare {
            true => number.to_string(),
            false => format!("{number:02}"),
        };
        let name =
            |names: &[&str], index: usize| names.get(index).copied().unwrap_or("?").to_owned();
        let short = |text: String| text.chars().take(3).collect::<String>();
        let month = usize::from(self.month).wrapping_sub(1);
        let weekday = (self.days() + 4).rem_euclid(7) as usize;
        Ok(match conversion {
            Some('Y') => self.year.to_string(),
            Some('y') => two(self.year.rem_euclid(100) as u8),
            Some('m') => two(self.month),
            Some('d') => two(self.day),
            Some('e') if bare => self.day.to_string(),
            Some('e') => format!("{:2}", self.day),
            Some('B') => name(&MONTHS, month),
            Some('b' | 'h') => short(name(&MONTHS, month)),
            Some('A') => name(&DAYS, weekday),
            Some('a') => short(name(&DAYS, weekday)),
            Some('H') => two(self.hour),
            Some('I') => two((self.hour + 11) % 12 + 1),
            Some('M') => two(self.minute),
            Some('S') => two(self.second),
            Some('p') => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('j') => {
                let first = Self {
                    month: 1,
                    day: 1,
                    ..*self
                }
                .days();
                let number = self.days() - first + 1;
                if bare {
                    number.to_string()
                } else {
                    format!("{number:03}")
                }
            }
            Some('F') => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            Some('T') => format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            Some('D') => format!(
                "{:02}/{:02}/{:02}",
                self.month,
                self.day,
                self.year.rem_euclid(100)
            ),
            Some('%') => "%".to_owned(),
            other => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("strftime_now does not know %{}", other.unwrap_or(' ')),
                ));
            }
        })
    }

    /// Days since 1970-01-01.
    fn days(&self) -> i64 {
        let (month, day) = (i64::from(self.month), i64::from(self.day));
        let year = self.year - i64::from(month <= 2);
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        era * 146_097 + day_of_era - 719_468
    }
}
