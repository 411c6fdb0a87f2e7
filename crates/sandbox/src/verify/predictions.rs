//! Predictions: patches by task, as SWE-bench and mini-swe-agent write them.
//!
//! One object a line (`.jsonl`), a list, or an object by id (`preds.json`); told apart by their
//! content. A patch is kept as it is: whether it applies is for grading to say.

use serde::Deserialize;
use temper_core::{Patch, TaskId};

/// What is to be graded.
#[derive(Clone, Debug, PartialEq)]
pub enum Predictions {
    /// The known fixes of the tasks.
    Gold,
    /// Patches of a file.
    Listed(Vec<Prediction>),
}

/// One patch.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The task.
    pub task_id: TaskId,
    /// Who made it.
    pub model: Option<String>,
    /// The patch; empty for `null`, an absent field and text without content.
    pub patch: Patch,
}

/// Predictions cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PredictionsError {
    /// The text is not JSON of a known shape.
    #[error("read predictions: {place}: {problem}")]
    Malformed {
        /// `line 3`, `entry 2`, `the file`.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// Two predictions for one task. Which one counts would depend on the reader.
    #[error("read predictions: {place}: {task_id} has two predictions")]
    Duplicate {
        /// Where the second one is.
        place: String,
        /// The task.
        task_id: TaskId,
    },
}

/// The word that stands for the known fixes.
pub const GOLD: &str = "gold";

#[derive(Deserialize)]
struct Entry {
    instance_id: Option<String>,
    #[serde(default)]
    model_name_or_path: Option<String>,
    #[serde(default)]
    model_patch: Option<String>,
}

impl Predictions {
    /// Reads a predictions file. The text `gold`, alone, means the known fixes.
    pub fn read(content: &[u8]) -> Result<Self, PredictionsError> {
        let text = content.trim_ascii();
        if text == GOLD.as_bytes() {
            return Ok(Predictions::Gold);
        }
        let entries = match text.first() {
            Some(b'[') => list(text)?,
            Some(b'{') => match serde_json::from_slice(text) {
                Ok(serde_json::Value::Object(map)) => object(map)?,
                // More than one document: one a line.
                _ => lines(content)?,
            },
            None => Vec::new(),
            Some(_) => {
                return Err(malformed(
                    "the file",
                    "expected JSON objects one a line, a list, or an object by id",
                ));
            }
        };
        let mut predictions: Vec<Prediction> = Vec::with_capacity(entries.len());
        let mut seen = std::collections::BTreeSet::new();
        for (place, entry) in entries {
            let prediction = prediction(&place, entry)?;
            if !seen.insert(prediction.task_id.clone()) {
                return Err(PredictionsError::Duplicate {
                    place,
                    task_id: prediction.task_id,
                });
            }
            predictions.push(prediction);
        }
        Ok(Predictions::Listed(predictions))
    }
}

fn malformed(place: impl Into<String>, problem: impl ToString) -> PredictionsError {
    PredictionsError::Malformed {
        place: place.into(),
        problem: problem.to_string(),
    }
}

fn prediction(place: &str, entry: Entry) -> Result<Prediction, PredictionsError> {
    let id = entry
        .instance_id
        .ok_or_else(|| malformed(place, "it has no instance_id"))?;
    Ok(Prediction {
        task_id: TaskId::new(id).map_err(|error| malformed(place, error))?,
        model: entry.model_name_or_path,
        patch: Patch(entry.model_patch.unwrap_or_default().as_str().into()),
    })
}

fn list(text: &[u8]) -> Result<Vec<(String, Entry)>, PredictionsError> {
    let entries: Vec<Entry> =
        serde_json::from_slice(text).map_err(|error| malformed("the file", error))?;
    Ok(entries
        .into_iter()
        .enumerate()
        .map(|(index, entry)| (format!("entry {}", index + 1), entry))
        .collect())
}

fn object(
    map: serde_json::Map<String, serde_json::Value>,
) -> Result<Vec<(String, Entry)>, PredictionsError> {
    let read = |place: &str, value| {
        serde_json::from_value::<Entry>(value).map_err(|error| malformed(place, error))
    };
    if map
        .get("instance_id")
        .is_some_and(serde_json::Value::is_string)
    {
        let place = "line 1".to_owned();
        let entry = read(&place, serde_json::Value::Object(map))?;
        return Ok(vec![(place, entry)]);
    }
    let mut entries = Vec::with_capacity(map.len());
    for (id, value) in map {
        let mut entry = read(&id, value)?;
        match &entry.instance_id {
            Some(inside) if *inside != id => {
                return Err(malformed(&id, format!("its instance_id is {inside:?}")));
            }
            _ => entry.instance_id = Some(id.clone()),
        }
        entries.push((id, entry));
    }
    Ok(entries)
}

fn lines(content: &[u8]) -> Result<Vec<(String, Entry)>, PredictionsError> {
    let mut entries = Vec::new();
    for (index, line) in content.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let place = format!("line {}", index + 1);
        let entry = serde_json::from_slice(line).map_err(|error| malformed(&place, error))?;
        entries.push((place, entry));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(content: &str) -> Vec<(String, String)> {
        match Predictions::read(content.as_bytes()).unwrap() {
            Predictions::Gold => panic!("gold"),
            Predictions::Listed(predictions) => predictions
                .into_iter()
                .map(|p| (p.task_id.to_string(), p.patch.0.to_text().into_owned()))
                .collect(),
        }
    }

    #[test]
    fn every_shape_gives_the_same_predictions() {
        let expected = [
            ("a__a-1".to_owned(), "diff\r\n \n".to_owned()),
            ("b__b-2".to_owned(), String::new()),
        ];
        for content in [
            "{\"instance_id\": \"a__a-1\", \"model_patch\": \"diff\\r\\n \\n\"}\n\n{\"instance_id\": \"b__b-2\", \"model_patch\": null, \"extra\": 1}\n",
            "[{\"instance_id\": \"a__a-1\", \"model_patch\": \"diff\\r\\n \\n\"}, {\"instance_id\": \"b__b-2\", \"model_patch\": \"\"}]",
            "{\"a__a-1\": {\"model_name_or_path\": \"m\", \"instance_id\": \"a__a-1\", \"model_patch\": \"diff\\r\\n \\n\"},\n \"b__b-2\": {}}",
        ] {
            assert_eq!(listed(content), expected, "{content}");
        }
        assert_eq!(
            listed("{\"instance_id\": \"a\", \"model_patch\": \"x\"}"),
            [("a".to_owned(), "x".to_owned())]
        );
        assert_eq!(listed(""), []);
        assert_eq!(Predictions::read(b"gold\n").unwrap(), Predictions::Gold);
    }

    #[test]
    fn errors_name_the_place() {
        let error = |content: &str| {
            Predictions::read(content.as_bytes())
                .unwrap_err()
                .to_string()
        };
        let line = "{\"instance_id\": \"a\"}\n";
        assert!(error(&format!("{line}{{\"instance_id\"}}")).contains("line 2"));
        assert!(error(&format!("{line}{line}")).contains("line 2: a has two predictions"));
        assert!(error("[{\"model_patch\": \"x\"}]").contains("entry 1: it has no instance_id"));
        assert!(error("{\"a\": {\"instance_id\": \"b\"}}").contains("a: its instance_id"));
        assert!(error("[{\"instance_id\": \"\"}]").contains("entry 1"));
        assert!(error("golden").contains("expected JSON"));
    }
}
