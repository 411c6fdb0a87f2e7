//! The proof of finished tasks: start and known fix, judged by the verifier that will judge trials.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use temper_core::{Patch, PreparedTask, task::Oracle};
use temper_sandbox::verify::{
    GradeRequest, Graded, Submission, grade,
    proof::{Finding, judge},
};

use crate::pool::{Cost, Metered, Workshop};

/// What the proof of one task gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Proof {
    /// What is wrong with the task; nothing, when it is proven.
    pub findings: Vec<Finding>,
    /// Judgements of the start.
    pub start: Vec<Graded>,
    /// Judgements of the known fix.
    pub oracle: Vec<Graded>,
}

impl Proof {
    /// Whether the task is proven.
    pub fn holds(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Proves tasks, each by `repetitions` runs of its start and of its known fix; proofs are in the
/// order of the tasks. A task whose first pair of runs already shows a fault is not run again.
pub fn prove(
    workshop: &Workshop<'_>,
    tasks: &[PreparedTask],
    repetitions: u32,
) -> (Vec<Proof>, Cost) {
    let backend = Metered::new(workshop.backend);
    let next = AtomicUsize::new(0);
    let proofs: Mutex<Vec<Option<Proof>>> = Mutex::new(vec![None; tasks.len()]);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(task) = tasks.get(number) else {
                return;
            };
            let proof = prove_one(workshop, &backend, task, repetitions);
            proofs.lock().unwrap_or_else(PoisonError::into_inner)[number] = Some(proof);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..workshop.n_workers.max(1) {
            scope.spawn(work);
        }
        work();
    });
    let proofs = proofs.into_inner().unwrap_or_else(PoisonError::into_inner);
    (proofs.into_iter().flatten().collect(), backend.cost())
}

fn prove_one(
    workshop: &Workshop<'_>,
    backend: &Metered<'_>,
    task: &PreparedTask,
    repetitions: u32,
) -> Proof {
    let fix: Option<Patch> = match &task.task.oracle {
        Some(Oracle::Patch { patch }) => Some(patch.clone()),
        Some(Oracle::ReversePatch { patch }) => temper_core::patch::reverse(patch).ok(),
        Some(Oracle::Script { .. }) | None => None,
    };
    let run = |submission, proven, side: &str| {
        let request = GradeRequest {
            task,
            submission,
            backend,
            limits: workshop.limits.clone(),
            demand: workshop.demand.clone(),
            label: format!("{}-{side}", workshop.label),
            proven,
        };
        grade(&request, &mut |_, _| {})
    };
    let mut proof = Proof {
        findings: Vec::new(),
        start: Vec::new(),
        oracle: Vec::new(),
    };
    for _ in 0..repetitions.max(1) {
        proof.start.push(run(Submission::Start, false, "start"));
        if let Some(fix) = &fix {
            proof
                .oracle
                .push(run(Submission::Patch(fix), false, "oracle"));
        }
        proof.findings = judge(&proof.start, &proof.oracle);
        if !proof.findings.is_empty() {
            break;
        }
    }
    proof
}
