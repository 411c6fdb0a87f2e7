//! The example of a statement as a script: the first interactive session in it.

/// The lines of a session that can be run, with what an expression gives printed. `None` where
/// there is no session or it cannot be turned into a script line by line.
pub fn of_statement(statement: &str) -> Option<String> {
    let session: Vec<&str> = statement
        .lines()
        .map(str::trim_end)
        .skip_while(|line| !line.trim_start().starts_with(">>> "))
        .take_while(|line| !line.trim().is_empty() && !line.trim_start().starts_with("```"))
        .collect();
    if session.is_empty()
        || session
            .iter()
            .any(|line| line.trim_start().starts_with("..."))
    {
        return None;
    }
    let mut script = String::new();
    let mut prints = false;
    for (at, line) in session.iter().enumerate() {
        let Some(code) = line.trim_start().strip_prefix(">>> ") else {
            continue;
        };
        let code = code.trim_end();
        // An expression without a result below it is run for what it does.
        let shows = session
            .get(at + 1)
            .is_some_and(|next| !next.trim_start().starts_with(">>> "));
        if shows && is_expression(code) {
            prints = true;
            // Its comment would swallow the bracket.
            if code.contains('#') {
                return None;
            }
            script.push_str(&printed(code));
        } else {
            script.push_str(code);
            script.push('\n');
        }
    }
    let clean = script.lines().all(|line| line != "EOF") && !script.contains("```");
    (prints && clean).then(|| format!("python - <<'EOF' 2>&1 | tail -n 8\n{script}EOF"))
}

/// A line that prints what the interactive interpreter would show.
fn printed(code: &str) -> String {
    let (mut depth, mut quote) = (0i32, None);
    let tuple = code.chars().any(|c| {
        match (quote, c) {
            (Some(open), c) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0 && quote.is_none()
    });
    if tuple {
        format!("print(repr(({code})))\n")
    } else {
        format!("print(repr({code}))\n")
    }
}

/// Whether a line of a session is an expression and no statement.
fn is_expression(code: &str) -> bool {
    const STATEMENTS: &[&str] = &[
        "import", "from", "def", "class", "for", "if", "while", "with", "try", "del", "assert",
        "raise", "return", "global", "print",
    ];
    let word = code
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .next()
        .unwrap_or_default();
    !STATEMENTS.contains(&word) && !code.starts_with('@') && !code.contains(';') && !assigns(code)
}

/// Whether there is an assignment outside brackets and strings.
fn assigns(code: &str) -> bool {
    let (mut depth, mut quote) = (0i32, None);
    let characters: Vec<char> = code.chars().collect();
    for (at, c) in characters.iter().enumerate() {
        match (quote, c) {
            (Some(open), c) if open == *c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(*c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth -= 1,
            (None, '=') if depth == 0 => {
                let before = at.checked_sub(1).map(|at| characters[at]);
                let after = characters.get(at + 1);
                let compares = before.is_some_and(|c| "=<>!".contains(c)) || after == Some(&'=');
                if !compares {
                    return true;
                }
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_becomes_a_script() {
        let statement = "Wrong:\n\n```pycon\n>>> import m\n>>> x = m.f(a=1)\n>>> x == 2, m.g(b=3)\n(False, 1)\n>>> m.h()\n>>> print(x)\n1\n```\n\n>>> never()\n";
        assert_eq!(
            of_statement(statement).unwrap(),
            "python - <<'EOF' 2>&1 | tail -n 8\nimport m\nx = m.f(a=1)\nprint(repr(x == 2, m.g(b=3)))\nm.h()\nprint(x)\nEOF"
                .replace("repr(x == 2, m.g(b=3))", "repr((x == 2, m.g(b=3)))")
        );
        for nothing in [
            "",
            "no session",
            ">>> import a\n",
            ">>> for x in y:\n...     x\n",
        ] {
            assert_eq!(of_statement(nothing), None, "{nothing}");
        }
    }
}
