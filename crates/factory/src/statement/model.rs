//! A model writes the report. It is shown what a user of the library could know: the documentation,
//! the failing public tests and their output; never the fix and never a hidden test, so it cannot
//! give away what it was not told.

use super::{Drafts, Facts, MAX_BYTES, cut, test_output};
use crate::chat::{ChatError, ChatModel, Prompt, only_block};

const SYSTEM: &str = "You write bug reports for Python libraries. You report what a user of the library observes, \
calmly and exactly, and you never guess at the cause.";

const MIN_CHARACTERS: usize = 60;

pub(super) fn write(facts: &Facts<'_>, model: &mut dyn ChatModel) -> Result<Drafts, ChatError> {
    let Some(prompt) = prompt(facts) else {
        return Ok(Err("there is nothing to tell a model".to_owned()));
    };
    let answer = model.answer(&prompt)?;
    Ok(read(&answer).map(|text| vec![text]))
}

/// What the model is asked. The same facts give the same prompt.
fn prompt(facts: &Facts<'_>) -> Option<Prompt> {
    let known = match test_output::write(facts) {
        Ok(drafts) => drafts.into_iter().next(),
        Err(_) => super::template::write(facts).ok()?.into_iter().next(),
    }?;
    let user = format!(
        "A bug slipped into the library {}. This is what is known of it:\n\n<known>\n{known}\n</known>\n\n\
         Write the issue that a user would file: a title in a first line that starts with `# `, then what they did \
         with the public interface, what happened and what they expected, with one short example. Do not name test \
         functions or test files, do not say which file, function or line of the library is at fault unless the user \
         calls it, and do not propose a change. At most 250 words. Answer with one fenced block that holds the issue in \
         Markdown; indent code inside it by four spaces.",
        facts.project
    );
    Some(Prompt {
        system: SYSTEM.to_owned(),
        user,
    })
}

/// The issue in an answer.
fn read(answer: &str) -> Result<String, String> {
    let text = only_block(answer)
        .ok_or("the model's answer is not one fenced block")?
        .trim();
    if text.chars().count() < MIN_CHARACTERS {
        return Err("the model's answer is too short".to_owned());
    }
    if text
        .chars()
        .any(|c| c.is_control() && !matches!(c, '\n' | '\t'))
    {
        return Err("the model's answer holds control characters".to_owned());
    }
    Ok(format!("{}\n", cut(text, MAX_BYTES)))
}
