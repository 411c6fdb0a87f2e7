//! What a call costs. An unknown price stays unknown: it is never zero.
//!
//! A price the provider reports with the reply wins over the user's table. Arithmetic is in whole
//! millionths of a dollar, so sums are exact.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use temper_core::usage::{MicroDollars, Usage};

/// A model's price in US dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "PriceInDollars", into = "PriceInDollars")]
pub struct Price {
    input: MicroDollars,
    cached: MicroDollars,
    output: MicroDollars,
}

/// The user's prices, by model name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PriceTable(pub BTreeMap<String, Price>);

/// An amount is not one.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("read a price: {name} must be from 0 to 1000000 dollars per million tokens, got {value}")]
pub struct InvalidPrice {
    name: &'static str,
    value: f64,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PriceInDollars {
    /// Prompt tokens.
    input: f64,
    /// Prompt tokens that came from the server's cache; without it they cost what others do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cached: Option<f64>,
    /// Sampled tokens.
    output: f64,
}

impl TryFrom<PriceInDollars> for Price {
    type Error = InvalidPrice;
    fn try_from(price: PriceInDollars) -> Result<Self, InvalidPrice> {
        Price::per_million(price.input, price.cached, price.output)
    }
}

impl From<Price> for PriceInDollars {
    fn from(price: Price) -> Self {
        PriceInDollars {
            input: price.input.dollars(),
            cached: (price.cached != price.input).then(|| price.cached.dollars()),
            output: price.output.dollars(),
        }
    }
}

impl PriceTable {
    /// The price of `model`, if the user gave one.
    pub fn get(&self, model: &str) -> Option<Price> {
        self.0.get(model).copied()
    }
}

impl Price {
    /// Prices in dollars per million tokens. Where `cached` is absent, cached prompt tokens cost
    /// what others do.
    pub fn per_million(input: f64, cached: Option<f64>, output: f64) -> Result<Self, InvalidPrice> {
        let amount = |name, value: f64| {
            MicroDollars::from_dollars(value)
                .filter(|_| value <= 1e6)
                .ok_or(InvalidPrice { name, value })
        };
        Ok(Price {
            input: amount("input", input)?,
            cached: amount("cached", cached.unwrap_or(input))?,
            output: amount("output", output)?,
        })
    }

    /// The cost of a call, rounded to the nearest millionth of a dollar. `None` where the server
    /// did not report the tokens, or reported more cached tokens than prompt tokens. Cached tokens
    /// that it does not report count as none.
    pub fn cost(&self, usage: Usage) -> Option<MicroDollars> {
        let prompt = usage.prompt_tokens?;
        let cached = usage.cached_tokens.unwrap_or(0);
        let fresh = prompt.checked_sub(cached)?;
        let sum = u128::from(fresh) * u128::from(self.input.0)
            + u128::from(cached) * u128::from(self.cached.0)
            + u128::from(usage.completion_tokens?) * u128::from(self.output.0);
        Some(per_million(sum + 500_000))
    }

    /// The most that a call of this size can cost, rounded up.
    pub fn ceiling(&self, prompt_tokens: u64, completion_tokens: u64) -> MicroDollars {
        let dearest = u128::from(self.input.0.max(self.cached.0));
        let sum = u128::from(prompt_tokens) * dearest
            + u128::from(completion_tokens) * u128::from(self.output.0);
        per_million(sum + 999_999)
    }
}

fn per_million(sum: u128) -> MicroDollars {
    MicroDollars(u64::try_from(sum / 1_000_000).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(prompt: u64, cached: Option<u64>, completion: u64) -> Usage {
        Usage {
            prompt_tokens: Some(prompt),
            cached_tokens: cached,
            completion_tokens: Some(completion),
        }
    }

    #[test]
    fn costs_are_what_a_hand_calculation_gives() {
        let price = Price::per_million(3.0, Some(0.3), 15.0).unwrap();
        // 8,000 * 3 + 2,000 * 0.3 + 500 * 15 = 24,000 + 600 + 7,500 millionths.
        let cost = price.cost(usage(10_000, Some(2_000), 500)).unwrap();
        assert_eq!(cost, MicroDollars(32_100));
        assert_eq!(
            price.cost(usage(10_000, None, 500)),
            Some(MicroDollars(37_500))
        );
        assert!(price.ceiling(10_000, 500) >= cost);
        // A cheap model: 7 tokens at 0.06 dollars per million are 0.42 millionths.
        let cheap = Price::per_million(0.06, None, 0.0).unwrap();
        assert_eq!(cheap.cost(usage(7, None, 0)), Some(MicroDollars(0)));
        assert_eq!(cheap.ceiling(7, 0), MicroDollars(1));
    }

    #[test]
    fn unknown_is_not_zero_and_huge_does_not_wrap() {
        let price = Price::per_million(3.0, None, 15.0).unwrap();
        assert_eq!(price.cost(Usage::default()), None);
        assert_eq!(price.cost(usage(1, Some(2), 1)), None);
        assert_eq!(
            price.cost(usage(u64::MAX, None, u64::MAX)),
            Some(MicroDollars(u64::MAX))
        );
        let free = Price::per_million(0.0, None, 0.0).unwrap();
        assert_eq!(free.cost(usage(5, None, 5)), Some(MicroDollars(0)));
    }

    #[test]
    fn a_table_is_read_as_users_write_it() {
        let table: PriceTable =
            serde_json::from_str(r#"{"m": {"input": 1, "output": 2.5}}"#).unwrap();
        assert_eq!(
            table.get("m").unwrap(),
            Price::per_million(1.0, None, 2.5).unwrap()
        );
        assert_eq!(table.get("other"), None);
        for bad in [
            r#"{"m": {"input": -1, "output": 1}}"#,
            r#"{"m": {"input": 1e300, "output": 1}}"#,
            r#"{"m": {"input": 1}}"#,
            r#"{"m": {"input": 1, "output": 1, "outptu": 1}}"#,
        ] {
            assert!(serde_json::from_str::<PriceTable>(bad).is_err(), "{bad}");
        }
    }
}
