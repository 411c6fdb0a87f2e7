//! The protocol of mini-swe-agent 1: a reply holds exactly one fenced `bash` block.
//!
//! The rule is upstream's regular expression. It ends a block at the first line that starts with
//! three backticks, so a here-document that holds a code fence is cut in the middle. Upstream runs
//! the piece; this implementation never does: see [`NestedFences`].

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{
    shell_syntax::{Open, open_at_end},
    text::{is_space, strip},
};

/// What happens to a command that a code fence inside it cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NestedFences {
    /// Nothing runs and the model is told which line did it.
    Refuse,
    /// The block is taken to end at the first later fence that leaves the command complete; where
    /// there is none, nothing runs and the model is told.
    RunWhole,
}

/// Why a reply holds no usable action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockError {
    /// No block, or more than one: what upstream calls a format error. The bodies are not stripped.
    NotExactlyOne(Vec<String>),
    /// The block was cut off by a fence inside its command.
    NestedFence {
        /// The line that cut it.
        fence: String,
        /// Where that line is in the block, counted from 1.
        line: usize,
        /// What the command has open at that point.
        open: Open,
    },
}

/// The bodies of all blocks, by upstream's rule, not stripped.
pub fn blocks(reply: &str) -> Vec<&str> {
    let mut bodies = Vec::new();
    let mut from = 0;
    while let Some(block) = block_at(reply, from) {
        from = block.end + FENCE.len();
        bodies.push(&reply[block]);
    }
    bodies
}

/// The one command of a reply, stripped of white space around it. `cut` says that the reply was
/// cut off at the output limit.
pub fn parse(reply: &str, nested: NestedFences, cut: bool) -> Result<String, BlockError> {
    let mut bodies = Vec::new();
    let mut from = 0;
    while let Some(body) = block_at(reply, from) {
        from = body.end + FENCE.len();
        match nested_fence(reply, body.start, body.end, cut) {
            None => bodies.push(&reply[body]),
            Some(error) => {
                let whole = match nested {
                    NestedFences::Refuse => None,
                    NestedFences::RunWhole => whole_command(reply, body.start, body.end),
                };
                let Some(end) = whole else {
                    return Err(error);
                };
                bodies.push(&reply[body.start..end]);
                from = end + FENCE.len();
            }
        }
    }
    match bodies[..] {
        [body] => Ok(strip(body).to_owned()),
        _ => Err(BlockError::NotExactlyOne(
            bodies.into_iter().map(str::to_owned).collect(),
        )),
    }
}

/// A line end and three backticks: what ends a block.
const FENCE: &str = "\n```";

/// Fences after the first that are tried as the end of a command; a reply with more is refused.
const MAX_CANDIDATES: usize = 64;

/// What begins a block, before white space that ends in a newline.
const OPENING: &str = "```bash";

/// The body of the first block at or after `from`, as the expression
/// "three backticks, `bash\s*\n(.*?)\n`, three backticks" finds it.
fn block_at(reply: &str, mut from: usize) -> Option<Range<usize>> {
    loop {
        from += reply[from..].find(OPENING)? + OPENING.len();
        let rest = &reply[from..];
        let space = &rest[..rest.len() - rest.trim_start_matches(is_space).len()];
        let Some(last) = space.rfind('\n') else {
            continue;
        };
        let start = from + last + 1;
        if let Some(length) = reply[start..].find(FENCE) {
            return Some(start..start + length);
        }
        // No fence follows. The white space itself may end in one, and is given back for it.
        if !reply[start..].starts_with(&FENCE[1..]) {
            return None;
        }
        let previous = space[..last].rfind('\n')?;
        return Some(from + previous + 1..from + last);
    }
}

/// Whether the fence after the body was meant to be part of the command: the command has something
/// open there, and the fence opens a block of its own, or more fences follow, or the reply itself
/// was cut. An open here-document with nothing of that around it is run as upstream runs it.
fn nested_fence(reply: &str, start: usize, end: usize, cut: bool) -> Option<BlockError> {
    let open = open_at_end(&reply[start..end])?;
    let after = &reply[end + FENCE.len()..];
    let info = after.lines().next().unwrap_or_default();
    let opens_a_block = !strip(info).trim_matches('`').is_empty();
    if !(opens_a_block || cut || after.contains(FENCE)) {
        return None;
    }
    Some(BlockError::NestedFence {
        fence: format!("```{info}"),
        line: reply[start..end].matches('\n').count() + 2,
        open,
    })
}

/// The end of the body if it is extended to the first closing fence that leaves nothing open.
fn whole_command(reply: &str, start: usize, first_end: usize) -> Option<usize> {
    let mut end = first_end;
    for _ in 0..MAX_CANDIDATES {
        end = end + FENCE.len() + reply[end + FENCE.len()..].find(FENCE)?;
        let info = reply[end + FENCE.len()..]
            .lines()
            .next()
            .unwrap_or_default();
        if strip(info).is_empty() && open_at_end(&reply[start..end]).is_none() {
            return Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const README: &str = "Write it.\n\n```bash  \ncat > README.md <<'EOF'\n# T\n\n```bash\nls\n```\n\nBye\nEOF\n```\n";

    #[test]
    fn a_nested_fence_is_named() {
        let Err(BlockError::NestedFence { fence, line, open }) =
            parse(README, NestedFences::Refuse, false)
        else {
            panic!("the cut command was accepted");
        };
        assert_eq!((fence.as_str(), line), ("```bash", 4));
        assert_eq!(
            open,
            Open::HereDocument {
                delimiter: "EOF".into()
            }
        );
    }

    #[test]
    fn the_whole_command_is_found() {
        assert_eq!(
            parse(README, NestedFences::RunWhole, false).unwrap(),
            "cat > README.md <<'EOF'\n# T\n\n```bash\nls\n```\n\nBye\nEOF"
        );
    }

    #[test]
    fn a_second_block_after_a_whole_command_still_counts() {
        let reply = format!("{README}```bash\nls\n```\n");
        let Err(BlockError::NotExactlyOne(bodies)) = parse(&reply, NestedFences::RunWhole, false)
        else {
            panic!("two blocks were accepted");
        };
        assert_eq!(bodies.len(), 2);
    }

    #[test]
    fn a_reply_cut_inside_the_nested_block_is_never_run() {
        let cut = &README[..README.find("ls").unwrap()];
        for nested in [NestedFences::Refuse, NestedFences::RunWhole] {
            assert!(matches!(
                parse(cut, nested, true),
                Err(BlockError::NestedFence { .. })
            ));
        }
    }

    #[test]
    fn an_open_here_document_alone_is_left_to_the_shell() {
        // dash and bash run this with a warning; so does upstream.
        let reply = "```bash\ncat <<EOF\nx\n```\nDone.";
        assert_eq!(
            parse(reply, NestedFences::Refuse, false).unwrap(),
            "cat <<EOF\nx"
        );
    }

    #[test]
    fn blocks_are_those_of_the_expression() {
        // Every text of up to six of these pieces.
        let expression = regex::Regex::new(r"(?s)```bash[\s\x1c-\x1f]*\n(.*?)\n```").unwrap();
        let pieces = ["```bash", "```", "\n", " ", "\u{1c}", "a"];
        let mut texts = vec![String::new()];
        for _ in 0..6 {
            texts = texts
                .iter()
                .flat_map(|text| pieces.iter().map(move |piece| format!("{text}{piece}")))
                .collect();
            for text in &texts {
                let expected: Vec<&str> = expression
                    .captures_iter(text)
                    .map(|captures| captures.get(1).unwrap().as_str())
                    .collect();
                assert_eq!(blocks(text), expected, "{text:?}");
            }
        }
    }

    #[test]
    fn many_fences_do_not_take_quadratic_time() {
        let reply = format!("```bash\ncat <<EOF\n{}", "```x\n".repeat(200_000));
        assert!(parse(&reply, NestedFences::RunWhole, false).is_err());
    }
}
