//! `temper model audit [MODEL]`: which bytes a model is, and what in it contradicts itself.

use serde_json::json;
use temper_checkpoint::audit::{self, Audit, AuditOptions, Severity};
use temper_report::table::{Align, Table};

use super::{
    args::AuditArgs,
    locate::{locate, revision},
};
use crate::{
    error::CliError,
    exit_code, machine, output,
    places::{Places, workers},
};

/// Prints the audit; findings of the gravity `error` are an exit code of their own.
pub fn run(args: &AuditArgs, places: &Places) -> Result<u8, CliError> {
    let located = locate(&args.source.model, &args.source.hub, places)?;
    let revision = args.revision.clone().or_else(|| revision(&located));
    let audit = audit::audit(
        &located.path,
        &AuditOptions {
            revision,
            n_threads: workers(None),
        },
    )
    .map_err(|error| CliError::new(exit_code::INPUT, error))?;
    let mut value = json!(audit);
    value["origin"] = json!(located.origin);
    value["machine"] = json!(machine::describe(places));
    output::data(&args.format.format.one(&value, || table(&audit)));
    Ok(if audit.has_errors() {
        exit_code::FINDINGS
    } else {
        exit_code::SUCCESS
    })
}

fn table(audit: &Audit) -> String {
    let mut files = Table::new(&[
        ("file", Align::Left),
        ("bytes", Align::Right),
        ("sha256", Align::Left),
    ]);
    for file in &audit.files {
        files.row([
            output::printable(&file.name),
            file.n_bytes.to_string(),
            file.sha256.to_string(),
        ]);
    }
    let unknown = || "unknown".to_owned();
    let mut text = format!("{files}\n");
    let mut field = |name: &str, value: String| {
        text.push_str(&format!("{name:<12} {}\n", output::printable(&value)));
    };
    field("digest", audit.digest.to_string());
    field(
        "revision",
        match &audit.revision.value {
            Some(revision) => {
                let sources: Vec<_> = audit.revision.claims.iter().map(|c| c.source).collect();
                format!("{revision} (by {})", sources.join(", "))
            }
            None => unknown(),
        },
    );
    field(
        "architecture",
        audit.architecture.clone().unwrap_or_else(unknown),
    );
    field(
        "weights",
        format!(
            "{}, {} files, {} tensors, {} elements, {:?}",
            audit.weights.format,
            audit.weights.n_files,
            audit.weights.n_tensors,
            audit.weights.n_elements,
            audit.weights.dtypes
        ),
    );
    field(
        "dtype",
        audit.declared_dtype.clone().unwrap_or_else(unknown),
    );
    field(
        "context",
        audit
            .max_position_embeddings
            .map_or_else(unknown, |n| format!("{n} tokens declared")),
    );
    field(
        "rope",
        audit
            .rope_identity
            .as_ref()
            .map_or_else(unknown, ToString::to_string),
    );
    field(
        "end of turn",
        audit.words.end_of_turn.clone().unwrap_or_else(unknown),
    );
    if audit.findings.is_empty() {
        text.push_str("\nno findings\n");
        return text;
    }
    let mut findings = Table::new(&[("gravity", Align::Left), ("finding", Align::Left)]);
    for finding in &audit.findings {
        let gravity = match finding.severity() {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        findings.row([gravity.to_owned(), output::printable(&finding.to_string())]);
    }
    format!("{text}\n{findings}")
}
