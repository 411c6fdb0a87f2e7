//! Writes a data set of the shape and size of published ones: what the audit is measured on.
//!
//! `cargo run --release -p temper-dataset --example trajectories -- ROWS FILE`
//!
//! FILE ends in `.parquet` or `.jsonl`. The text is made: code-like lines of words of which some
//! come much more often than others, so it compresses about as real text does. A row has 59
//! messages and 70 KB on average, as the published set of 66,000 rows has.

#![allow(clippy::print_stderr)]

use std::{
    error::Error,
    fmt::Write as _,
    fs::File,
    io::{BufWriter, Write},
};

use temper_dataset::formats::parquet::MessagesWriter;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [n_rows, path] = arguments.as_slice() else {
        return Err("usage: trajectories ROWS FILE.parquet|FILE.jsonl".into());
    };
    let n_rows: u64 = n_rows.parse()?;
    let mut output = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut n_bytes = 0u64;
    if path.ends_with(".parquet") {
        let mut writer = MessagesWriter::new(output)?;
        for row in 0..n_rows {
            let (id, messages) = row_of(row);
            n_bytes += length(&messages);
            let messages = messages.iter().map(|(role, text)| (*role, text.as_str()));
            writer.row(Some(&id), messages)?;
        }
        writer.finish()?;
    } else {
        for row in 0..n_rows {
            let (id, messages) = row_of(row);
            n_bytes += length(&messages);
            let messages: Vec<_> = messages
                .iter()
                .map(|(role, content)| serde_json::json!({"role": role, "content": content}))
                .collect();
            let line = serde_json::json!({"instance_id": id, "messages": messages});
            writeln!(output, "{line}")?;
        }
        output.flush()?;
    }
    eprintln!("{n_rows} rows, {n_bytes} bytes of text");
    Ok(())
}

fn length(messages: &[(&str, String)]) -> u64 {
    messages.iter().map(|(_, text)| text.len() as u64).sum()
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

const SYLLABLES: [&str; 16] = [
    "con", "fig", "re", "pars", "er", "val", "ue", "ob", "ject", "in", "dex", "list", "path",
    "err", "str", "node",
];

/// A name of one to three syllables; some come more often than others.
fn name(random: &mut Random, text: &mut String) {
    let bits = 1 + random.below(12);
    let mut rank = random.below(1 << bits);
    loop {
        text.push_str(SYLLABLES[(rank % 16) as usize]);
        rank /= 16;
        if rank == 0 {
            break;
        }
    }
}

fn code_line(random: &mut Random, number: u64, text: &mut String) {
    for _ in 0..random.below(4) {
        text.push_str("    ");
    }
    name(random, text);
    text.push_str([" = ", ".", "(self, ", "[", " in "][random.below(5) as usize]);
    name(random, text);
    if random.below(3) == 0 {
        let _ = write!(text, ", {}", random.below(1000) * number % 977);
    }
    text.push('\n');
}

fn output(random: &mut Random, n_bytes: u64) -> String {
    let mut text = String::from("<returncode>0</returncode>\n<output>\n");
    let end = text.len() + n_bytes as usize;
    let mut number = 1 + random.below(300);
    while text.len() < end {
        let _ = write!(text, "{number:6}\t");
        code_line(random, number, &mut text);
        number += 1;
    }
    text.push_str("</output>");
    text
}

fn words(random: &mut Random, n: u64, text: &mut String) {
    for _ in 0..n {
        name(random, text);
        text.push(' ');
    }
}

fn edit(random: &mut Random, text: &mut String) {
    for (n_lines, tag, before) in [
        (
            6,
            "OLD",
            "python /testbed/edit_via_str_replace src/a.py -- ",
        ),
        (8, "NEW", " "),
    ] {
        let _ = writeln!(text, "{before}\"$(cat <<'{tag}'");
        for line in 0..n_lines {
            code_line(random, line, text);
        }
        let _ = write!(text, "{tag}\n)\"");
    }
}

fn row_of(row: u64) -> (String, Vec<(&'static str, String)>) {
    // One row in 100 is the row before it again, and one in 50 begins with the edits of the row
    // before it.
    let seed = if row % 100 == 99 { row - 1 } else { row };
    let edit_seed = if seed % 50 == 37 { seed - 1 } else { seed };
    let mut random = Random(seed);
    let mut edits = Random(edit_seed ^ 0x5eed_0000_0000);
    let instance = seed / 5;
    let project = instance % 128;
    let id = format!(
        "owner{project}__project{project}.{:08x}.func_pm_op_change__{instance:08x}",
        project * 7919 + 0x1000_0000
    );
    let mut prompt = String::from("<pr_description>\n");
    words(&mut Random(instance ^ 0x7e87_0000_0000), 150, &mut prompt);
    prompt.push_str("\n</pr_description>\n<instructions>\n");
    words(&mut Random(1), 900, &mut prompt);
    let mut messages = vec![
        ("system", "Answer with one bash block.".to_owned()),
        ("user", prompt),
    ];
    let n_turns = 14 + random.below(30);
    for turn in 0..n_turns {
        let mut reply = String::from("THOUGHT: ");
        let n_words = 20 + random.below(80);
        words(&mut random, n_words, &mut reply);
        reply.push_str("\n\n```bash\n");
        if turn + 1 == n_turns {
            reply.push_str("echo MINI_SWE_AGENT_FINAL_OUTPUT && git add -A && git diff --cached");
        } else if turn + 2 == n_turns && seed % 8 != 0 {
            reply.push_str("cd /testbed && python -m pytest tests -q");
        } else if turn % 6 == 5 {
            edit(&mut edits, &mut reply);
        } else {
            let _ = write!(reply, "cd /testbed && sed -n '{turn},80p' src/");
            name(&mut random, &mut reply);
            reply.push_str(".py");
        }
        reply.push_str("\n```");
        messages.push(("assistant", reply));
        if turn + 1 < n_turns {
            let n_bytes = 200 + random.below(3200);
            messages.push(("user", output(&mut random, n_bytes)));
        }
    }
    (id, messages)
}
