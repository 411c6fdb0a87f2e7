//! What a report is made from.

use temper_core::{
    Digest, SourceGroup, TaskId, Trial,
    manifest::{Manifest, Producer},
    task::{Origin, Split},
};
use temper_eval::{
    Aggregate, Comparison, MetricLog, Selection, claims::Claims, record::ResultRecord,
};

/// Everything in a report but the trajectories, which are read one at a time.
#[derive(Clone, Debug)]
pub struct ReportInput<'a> {
    /// The headline of the page.
    pub title: String,
    /// A notice above everything, such as that the data is made up.
    pub notice: Option<String>,
    /// When the report is made, RFC 3339; the caller's clock.
    pub generated_at: String,
    /// What makes it.
    pub producer: Producer,
    /// All numbers.
    pub comparison: &'a Comparison,
    /// What several training seeds come to together.
    pub aggregate: Option<&'a Aggregate>,
    /// The arms of the comparison, in its order.
    pub arms: Vec<ArmInput<'a>>,
    /// Tasks by id; one that is missing is shown by its id alone.
    pub tasks: Vec<TaskInput<'a>>,
    /// Metric logs to draw.
    pub metrics: Vec<MetricInput<'a>>,
    /// What the results may be called; absent for made-up data.
    pub claims: Option<&'a Claims>,
    /// The records of the arms.
    pub records: &'a [ResultRecord],
    /// How the arms were made, where this run made them.
    pub training: Option<TrainingInput>,
}

/// How candidates were trained, chosen and tested.
#[derive(Clone, Debug, Default)]
pub struct TrainingInput {
    /// What there is to know, by name: model, data, device.
    pub facts: Vec<(String, String)>,
    /// One for each training run.
    pub selections: Vec<SelectionInput>,
    /// Final tests that were run, in words.
    pub final_tests: Vec<String>,
    /// What a reader has to know before believing a number, in words.
    pub warnings: Vec<String>,
}

/// How a snapshot was chosen.
#[derive(Clone, Debug)]
pub struct SelectionInput {
    /// The training run.
    pub title: String,
    /// On what grounds, in words.
    pub rule: String,
    /// The numbers; none where nothing was compared.
    pub selection: Option<Selection>,
    /// What was taken.
    pub taken: String,
}

/// One arm.
#[derive(Clone, Debug)]
pub struct ArmInput<'a> {
    /// Where the job lies, as the user should see it.
    pub job: String,
    /// What drives the agent.
    pub driver: Driver,
    /// What drives it in detail, without secrets.
    pub description: &'a serde_json::Value,
    /// The job's manifest.
    pub manifest: &'a Manifest,
    /// The sandbox's protections in force, by name.
    pub protections: &'a serde_json::Value,
    /// Its trials.
    pub trials: &'a [Trial],
}

/// Whether a language model answered, or a program that is honest about being one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// A language model.
    LanguageModel,
    /// A program without a language model.
    Program,
}

impl Driver {
    /// The driver in words.
    pub fn words(self) -> &'static str {
        match self {
            Driver::LanguageModel => "language model",
            Driver::Program => "program, no language model",
        }
    }
}

/// One task as a reader wants to know it.
#[derive(Clone, Debug)]
pub struct TaskInput<'a> {
    /// The task.
    pub id: &'a TaskId,
    /// Its digest.
    pub digest: &'a Digest,
    /// Its source group.
    pub source_group: &'a SourceGroup,
    /// Its split.
    pub split: Split,
    /// What the agent was asked to do.
    pub statement: &'a str,
    /// Where its code comes from.
    pub origin: &'a Origin,
}

/// One metric log.
#[derive(Clone, Debug)]
pub struct MetricInput<'a> {
    /// What it is a log of.
    pub label: String,
    /// The log.
    pub log: &'a MetricLog,
}
