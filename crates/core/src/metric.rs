//! Numbers over time that keep their meaning in strict JSON.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A measured value, where "not a number", the infinities and "not recorded" stay distinct from
/// each other and from zero.
///
/// In JSON: a number, the strings `"NaN"`, `"Infinity"`, `"-Infinity"`, or `null` for not recorded.
#[derive(Clone, Copy, Debug)]
pub enum MetricValue {
    /// A finite number.
    Finite(f64),
    /// The computation gave no number.
    NotANumber,
    /// Positive infinity.
    PositiveInfinity,
    /// Negative infinity.
    NegativeInfinity,
    /// Nothing was measured.
    NotRecorded,
}

impl From<f64> for MetricValue {
    fn from(value: f64) -> Self {
        if value.is_nan() {
            MetricValue::NotANumber
        } else if value == f64::INFINITY {
            MetricValue::PositiveInfinity
        } else if value == f64::NEG_INFINITY {
            MetricValue::NegativeInfinity
        } else {
            MetricValue::Finite(value)
        }
    }
}

impl From<Option<f64>> for MetricValue {
    fn from(value: Option<f64>) -> Self {
        value.map_or(MetricValue::NotRecorded, MetricValue::from)
    }
}

impl MetricValue {
    /// The value if it is an ordinary number.
    pub fn finite(self) -> Option<f64> {
        match self {
            MetricValue::Finite(value) => Some(value),
            _ => None,
        }
    }
}

impl PartialEq for MetricValue {
    fn eq(&self, other: &Self) -> bool {
        use MetricValue::*;
        match (self, other) {
            (Finite(a), Finite(b)) => a == b,
            (a, b) => std::mem::discriminant(a) == std::mem::discriminant(b),
        }
    }
}

impl Serialize for MetricValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            // The variant can be built with a non-finite number by hand; it must still not
            // become an invalid or misleading token.
            MetricValue::Finite(value) if value.is_finite() => serializer.serialize_f64(*value),
            MetricValue::Finite(value) => MetricValue::from(*value).serialize(serializer),
            MetricValue::NotANumber => serializer.serialize_str("NaN"),
            MetricValue::PositiveInfinity => serializer.serialize_str("Infinity"),
            MetricValue::NegativeInfinity => serializer.serialize_str("-Infinity"),
            MetricValue::NotRecorded => serializer.serialize_none(),
        }
    }
}

impl<'de> Deserialize<'de> for MetricValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::Null => Ok(MetricValue::NotRecorded),
            serde_json::Value::Number(number) => number
                .as_f64()
                .map(MetricValue::from)
                .ok_or_else(|| serde::de::Error::custom("number out of range")),
            serde_json::Value::String(text) => match text.as_str() {
                "NaN" => Ok(MetricValue::NotANumber),
                "Infinity" => Ok(MetricValue::PositiveInfinity),
                "-Infinity" => Ok(MetricValue::NegativeInfinity),
                _ => Err(serde::de::Error::custom(format!(
                    "expected a number, null, \"NaN\", \"Infinity\" or \"-Infinity\", got {text:?}"
                ))),
            },
            other => Err(serde::de::Error::custom(format!(
                "expected a metric value, got {other}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_strict_json_and_keeps_every_kind_apart() {
        for (value, json) in [
            (MetricValue::from(1.5), "1.5"),
            (MetricValue::from(f64::NAN), "\"NaN\""),
            (MetricValue::from(f64::INFINITY), "\"Infinity\""),
            (MetricValue::from(f64::NEG_INFINITY), "\"-Infinity\""),
            (MetricValue::NotRecorded, "null"),
        ] {
            assert_eq!(serde_json::to_string(&value).unwrap(), json);
            assert_eq!(serde_json::from_str::<MetricValue>(json).unwrap(), value);
        }
        assert_ne!(MetricValue::NotRecorded, MetricValue::from(0.0));
        assert_eq!(
            serde_json::to_string(&MetricValue::Finite(f64::NAN)).unwrap(),
            "\"NaN\""
        );
        assert!(serde_json::from_str::<MetricValue>("\"nan\"").is_err());
    }
}
