//! What is said before a command: a sentence or two, in several wordings, about what was seen.

/// Choices that depend on the seed alone.
#[derive(Clone, Debug)]
pub struct Choice(u64);

impl Choice {
    /// Begins a sequence.
    pub fn new(seed: u64) -> Self {
        Choice(seed)
    }

    /// A number below `n`; 0 if `n` is. SplitMix64.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z % (n.max(1) as u64)) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high + 1 - low)
    }

    /// True `n` times of ten.
    pub fn of_ten(&mut self, n: usize) -> bool {
        self.below(10) < n
    }

    /// One of several.
    pub fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    /// One of several texts, with `{}` replaced in order.
    fn say(&mut self, all: &[&str], values: &[&str]) -> String {
        let mut text = self.of(all).to_owned();
        for value in values {
            text = text.replacen("{}", value, 1);
        }
        text
    }
}

/// The first thing said about where things lie.
pub fn list(choice: &mut Choice) -> String {
    choice.say(
        &[
            "First I look at what the repository holds.",
            "I start by listing the source files.",
            "Let me see how the repository is laid out.",
        ],
        &[],
    )
}

/// Before the public tests are run for the first time.
pub fn first_tests(choice: &mut Choice) -> String {
    choice.say(
        &[
            "I run the public tests to see what fails.",
            "The task names its public tests. I run them first to reproduce the problem.",
            "Before changing anything I reproduce the failure with the public tests.",
            "Let me see how the public tests fail.",
        ],
        &[],
    )
}

/// Before the statement's example is run.
pub fn first_script(choice: &mut Choice) -> String {
    choice.say(
        &[
            "I reproduce the problem with the example from the task.",
            "The task gives a session. I run it as a script to see the wrong result myself.",
            "First I check that the example behaves as the task says.",
        ],
        &[],
    )
}

/// Before a definition is looked for.
pub fn name(choice: &mut Choice, name: &str, in_statement: bool) -> String {
    if in_statement {
        choice.say(
            &[
                "The task speaks of `{}`. I look for where it is defined.",
                "`{}` is named in the task, so I search for its definition.",
                "Where is `{}` defined?",
            ],
            &[name],
        )
    } else {
        choice.say(
            &[
                "The output shows `{}`. I look for its definition.",
                "`{}` is involved, as the output shows. Where is it defined?",
                "I follow `{}`, which I just saw, to its definition.",
            ],
            &[name],
        )
    }
}

/// Before a word is looked for.
pub fn word(choice: &mut Choice, word: &str, in_statement: bool) -> String {
    if in_statement {
        choice.say(
            &[
                "The task mentions `{}`. I search the sources for it.",
                "I search for `{}`, a word of the report.",
                "Let me find the code that deals with `{}`.",
            ],
            &[word],
        )
    } else {
        choice.say(
            &[
                "I saw `{}` in the output and search the sources for it.",
                "`{}` may lead further. I search for it.",
            ],
            &[word],
        )
    }
}

/// Before definitions are looked for whose names contain a word.
pub fn part(choice: &mut Choice, part: &str) -> String {
    choice.say(
        &[
            "Which functions and classes have to do with `{}`?",
            "I look for definitions with `{}` in their names.",
        ],
        &[part],
    )
}

/// Before a file is opened around a line.
pub fn open(choice: &mut Choice, file: &str, line: usize, traceback: bool) -> String {
    let line = line.to_string();
    if traceback {
        choice.say(
            &[
                "The traceback leads to line {} of {}. I read the code there.",
                "It goes through line {} of {}, so I open that part.",
            ],
            &[&line, file],
        )
    } else {
        choice.say(
            &[
                "Line {} of {} is a match. I read the code around it.",
                "I open the code at line {} of {}.",
                "The match at line {} of {} looks right; I read on from there.",
            ],
            &[&line, file],
        )
    }
}

/// Before a failing test is opened.
pub fn test(choice: &mut Choice, name: &str) -> String {
    choice.say(
        &[
            "`{}` fails. I read the test to see what it calls.",
            "What does the failing test `{}` do?",
        ],
        &[name],
    )
}

/// Before the definitions of a file are listed.
pub fn listing(choice: &mut Choice, file: &str) -> String {
    choice.say(
        &[
            "The code in question is in {}. I list its definitions.",
            "I list what {} defines, to find the right function.",
        ],
        &[file],
    )
}

/// Before the right edit. `what` says what changes, `where_` where.
pub fn edit(choice: &mut Choice, what: &str, place: &str) -> String {
    choice
        .say(
            &[
                "This is the cause: {1}. {2}",
                "The code at {1} does not do what the task asks for. {2}",
                "The wrong behaviour comes from {1}. {2}",
                "I have found it in {1}. {2}",
            ],
            &[],
        )
        .replace("{1}", place)
        .replace("{2}", what)
}

/// Before another edit of the same fix.
pub fn next_edit(choice: &mut Choice, what: &str, place: &str) -> String {
    choice
        .say(
            &[
                "The fix needs a second place as well, {1}. {2}",
                "That alone is not enough: {1} has to change too. {2}",
            ],
            &[],
        )
        .replace("{1}", place)
        .replace("{2}", what)
}

/// Before a first edit that will turn out wrong.
pub fn guess(choice: &mut Choice, place: &str) -> String {
    choice.say(
        &[
            "My first guess is that the fault is in {}. I change it and let the tests decide.",
            "I suspect {}. I try a change there.",
            "It may be {}. I try this and run the tests.",
        ],
        &[place],
    )
}

/// After a wrong edit, before the right one.
pub fn recover(choice: &mut Choice, reason: Option<&str>, what: &str, place: &str) -> String {
    let begin = match reason {
        Some(reason) => choice.say(
            &[
                "The tests still fail: `{}`. My change was wrong.",
                "That did not help, the tests say `{}`.",
                "Still failing with `{}`, so my guess was not right.",
            ],
            &[reason],
        ),
        None => choice.say(
            &[
                "The tests still fail, so my change was wrong.",
                "That did not help; there are still failures.",
            ],
            &[],
        ),
    };
    let rest = choice.say(&["I look at {1} again. {2}", "I correct {1}. {2}"], &[]);
    format!("{begin} {rest}")
        .replace("{1}", place)
        .replace("{2}", what)
}

/// Before the change is looked at.
pub fn diff(choice: &mut Choice) -> String {
    choice.say(
        &[
            "I check that the change is what I meant.",
            "Let me look at the change.",
            "I review the diff before testing.",
        ],
        &[],
    )
}

/// Before the tests are run with an edit in place.
pub fn check(choice: &mut Choice) -> String {
    choice.say(
        &[
            "Now I run the public tests.",
            "The edit is in place. I run the public tests.",
            "I test the change.",
            "Let me see whether the tests pass now.",
        ],
        &[],
    )
}

/// Before the example is run again.
pub fn check_script(choice: &mut Choice) -> String {
    choice.say(
        &[
            "I run the example again.",
            "Does the example from the task give the right result now?",
        ],
        &[],
    )
}

/// Before submitting.
pub fn submit(choice: &mut Choice) -> String {
    choice.say(
        &[
            "All public tests pass. I submit.",
            "The tests pass and the change is small. I submit it.",
            "Everything passes, so I submit.",
            "The problem is solved and the tests pass. I submit.",
        ],
        &[],
    )
}

/// Before submitting where there are no tests to run.
pub fn submit_untested(choice: &mut Choice) -> String {
    choice.say(
        &[
            "The change does what the task asks for. I submit it.",
            "The change is in place. I submit.",
        ],
        &[],
    )
}
