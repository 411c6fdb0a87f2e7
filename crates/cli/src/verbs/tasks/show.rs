//! `temper tasks show ID`: one task as a person reads it.

use serde_json::json;
use temper_core::task::{Oracle, Verifier};
use temper_report::Format;

use crate::{args::SuiteArgs, error::CliError, exit_code, output, places::Places, tasks};

/// Prints the task; the known fix only when asked for.
pub fn run(
    id: &str,
    mut args: SuiteArgs,
    with_oracle: bool,
    format: Format,
    places: &Places,
) -> Result<u8, CliError> {
    args.tasks = vec![id.to_owned()];
    let mut suite = tasks::load(&args, places)?;
    if suite.tasks.len() > 1 {
        return Err(CliError::new(
            exit_code::USAGE,
            format!("show {id}: {} tasks match", suite.tasks.len()),
        ));
    }
    let mut task = suite.tasks.remove(0);
    let digest = task.digest();
    if !with_oracle {
        task.oracle = None;
    }
    let value = json!({ "digest": digest, "task": task });
    output::data(&format.one(&value, || {
        let mut text = String::new();
        let mut field = |name: &str, value: &str| {
            text.push_str(&format!("{name:<14} {}\n", output::printable(value)));
        };
        let unknown = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".into());
        field("task", task.id.as_str());
        field("digest", digest.as_str());
        field("split", &format!("{:?}", task.split).to_lowercase());
        field("source group", task.source_group.as_str());
        field(
            "project",
            &format!("{} {}", task.origin.project, unknown(&task.origin.version)),
        );
        field("licence", &unknown(&task.origin.licence));
        field("home", &unknown(&task.origin.url));
        field("bug", &unknown(&task.origin.bug));
        if let Verifier::Pytest {
            public,
            hidden,
            test_files,
            ..
        } = &task.verifier
        {
            field("test files", &test_files.join(", "));
            for (layer, lists) in [("public", public), ("hidden", hidden)] {
                let ids: Vec<&str> = lists.fail_to_pass.iter().map(|id| id.as_str()).collect();
                field(
                    layer,
                    &format!(
                        "{} fail-to-pass ({}), {} pass-to-pass",
                        ids.len(),
                        ids.join(", "),
                        lists.pass_to_pass.len()
                    ),
                );
            }
        }
        text.push_str(&format!(
            "\n{}\n",
            output::printable(task.statement.trim_end())
        ));
        if let Some(Oracle::Patch { patch } | Oracle::ReversePatch { patch }) = &task.oracle {
            text.push_str(&format!("\n{}", output::printable(&patch.0.to_text())));
        }
        text
    }));
    Ok(exit_code::SUCCESS)
}
