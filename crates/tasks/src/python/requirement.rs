//! Version requirements of Python itself: the release part of PEP 440's specifiers.

/// A requirement such as `>=3.9,!=3.10.*`. An empty one allows everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement(Vec<Clause>);

/// The text is not a version requirement.
#[derive(Debug, thiserror::Error)]
#[error("read the Python requirement {0:?}: expected clauses such as >=3.9,<3.14")]
pub struct InvalidRequirement(String);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Clause {
    operator: Operator,
    parts: Vec<u64>,
    wildcard: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    AtLeast,
    AtMost,
    More,
    Less,
    Equal,
    NotEqual,
    Compatible,
}

const OPERATORS: [(&str, Operator); 7] = [
    (">=", Operator::AtLeast),
    ("<=", Operator::AtMost),
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("~=", Operator::Compatible),
    (">", Operator::More),
    ("<", Operator::Less),
];

impl std::str::FromStr for Requirement {
    type Err = InvalidRequirement;
    fn from_str(text: &str) -> Result<Self, InvalidRequirement> {
        text.split(',')
            .map(str::trim)
            .filter(|clause| !clause.is_empty())
            .map(parse_clause)
            .collect::<Option<_>>()
            .map(Requirement)
            .ok_or_else(|| InvalidRequirement(text.to_owned()))
    }
}

fn parse_clause(text: &str) -> Option<Clause> {
    let (operator, version) = OPERATORS
        .iter()
        .find_map(|(sign, operator)| Some((*operator, text.strip_prefix(sign)?.trim())))?;
    let (version, wildcard) = match version.strip_suffix(".*") {
        Some(version) if matches!(operator, Operator::Equal | Operator::NotEqual) => {
            (version, true)
        }
        Some(_) => return None,
        None => (version, false),
    };
    let parts: Vec<u64> = version
        .split('.')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    let enough = operator != Operator::Compatible || parts.len() >= 2;
    enough.then_some(Clause {
        operator,
        parts,
        wildcard,
    })
}

impl Requirement {
    /// Whether a released version satisfies every clause.
    pub fn allows(&self, (major, minor, patch): (u64, u64, u64)) -> bool {
        let version = [major, minor, patch];
        self.0.iter().all(|clause| clause.allows(&version))
    }
}

impl Clause {
    fn allows(&self, version: &[u64; 3]) -> bool {
        let order = compare(version, &self.parts);
        match self.operator {
            Operator::AtLeast => order.is_ge(),
            Operator::AtMost => order.is_le(),
            Operator::More => order.is_gt(),
            Operator::Less => order.is_lt(),
            Operator::Equal if self.wildcard => has_prefix(version, &self.parts),
            Operator::NotEqual if self.wildcard => !has_prefix(version, &self.parts),
            Operator::Equal => order.is_eq(),
            Operator::NotEqual => order.is_ne(),
            Operator::Compatible => {
                order.is_ge() && has_prefix(version, &self.parts[..self.parts.len() - 1])
            }
        }
    }
}

/// Missing parts count as zero.
fn compare(version: &[u64], other: &[u64]) -> std::cmp::Ordering {
    let part = |parts: &[u64], index: usize| parts.get(index).copied().unwrap_or(0);
    (0..version.len().max(other.len()))
        .map(|index| part(version, index).cmp(&part(other, index)))
        .find(|order| order.is_ne())
        .unwrap_or(std::cmp::Ordering::Equal)
}

fn has_prefix(version: &[u64], prefix: &[u64]) -> bool {
    prefix
        .iter()
        .enumerate()
        .all(|(index, part)| version.get(index).copied().unwrap_or(0) == *part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_mean_what_pep_440_says() {
        // Checked against `packaging.specifiers.SpecifierSet`, version 25.0.
        for (requirement, version, allowed) in [
            ("", (3, 11, 7), true),
            (">=3.9", (3, 9, 0), true),
            (">=3.9", (3, 8, 20), false),
            (">=3.9, <3.13", (3, 12, 9), true),
            (">=3.9,<3.13", (3, 13, 0), false),
            ("~=3.8", (3, 14, 0), true),
            ("~=3.8", (4, 0, 0), false),
            ("~=3.8.2", (3, 8, 10), true),
            ("~=3.8.2", (3, 9, 0), false),
            ("==3.11.*", (3, 11, 7), true),
            ("==3.11.*", (3, 12, 0), false),
            ("!=3.11.*", (3, 11, 0), false),
            ("==3.11", (3, 11, 0), true),
            ("==3.11", (3, 11, 7), false),
            ("!=3.11", (3, 11, 7), true),
            (">3.9", (3, 9, 1), true),
            (">3.9", (3, 9, 0), false),
            ("<=3.12", (3, 12, 0), true),
            ("<=3.12", (3, 12, 1), false),
        ] {
            let parsed: Requirement = requirement.parse().unwrap();
            assert_eq!(parsed.allows(version), allowed, "{requirement} {version:?}");
        }
        for bad in [
            "3.9", ">=", ">=3.x", "=>3", "~=3", ">=3.*", ">=3.9;", "==3..1",
        ] {
            assert!(bad.parse::<Requirement>().is_err(), "{bad}");
        }
    }
}
