//! Published vectors and finite differences of every preference objective.

use super::*;

const PAIR: PairLogprobs = PairLogprobs {
    policy_chosen: -12.0,
    policy_rejected: -14.0,
    reference_chosen: -12.5,
    reference_rejected: -13.5,
    n_chosen: 8,
    n_rejected: 10,
};

/// An objective of each kind, with its loss at [`PAIR`], computed by hand in f64.
const VECTORS: [(PreferenceObjective, f64); 8] = [
    (PreferenceObjective::Dpo { beta: 0.1 }, 0.644396660),
    (
        PreferenceObjective::ConservativeDpo {
            beta: 0.1,
            label_smoothing: 0.1,
        },
        0.654396660,
    ),
    (
        PreferenceObjective::RobustDpo {
            beta: 0.1,
            label_smoothing: 0.1,
        },
        0.631896660,
    ),
    (
        PreferenceObjective::Ipo {
            tau: 0.1,
            averaged: false,
        },
        16.0,
    ),
    (
        PreferenceObjective::Ipo {
            tau: 0.1,
            averaged: true,
        },
        23.887656250,
    ),
    (
        PreferenceObjective::LengthNormalisedDpo { beta: 5.0 },
        0.450937282,
    ),
    (
        PreferenceObjective::Simpo {
            beta: 2.0,
            gamma: 1.0,
        },
        1.463282467,
    ),
    (
        PreferenceObjective::Simpo {
            beta: 2.0,
            gamma: 0.5,
        },
        1.103186049,
    ),
];

#[test]
fn losses_at_a_known_pair() {
    for (objective, expected) in VECTORS {
        objective.check().unwrap();
        let got = objective.loss(&PAIR).loss;
        assert!((got - expected).abs() < 1e-9, "{objective:?}: {got}");
    }
    let dpo = VECTORS[0].0.loss(&PAIR);
    assert!((dpo.d_chosen + 0.047502081).abs() < 1e-9);
    assert!((dpo.gradient_weight - 0.47502081).abs() < 1e-8);
    assert!((dpo.chosen_reward - 0.05).abs() < 1e-12);
    assert!((dpo.rejected_reward + 0.05).abs() < 1e-12);
}

#[test]
fn gradients_are_differences_of_the_loss() {
    const STEP: f64 = 1e-5;
    // Pairs on both sides of every bend, and far out where sigmoids are flat.
    for shift in [-200.0, -3.0, 0.0, 0.7, 40.0] {
        for (objective, _) in VECTORS {
            let at = |chosen: f64, rejected: f64| {
                objective.loss(&PairLogprobs {
                    policy_chosen: PAIR.policy_chosen + shift + chosen,
                    policy_rejected: PAIR.policy_rejected + rejected,
                    ..PAIR
                })
            };
            let here = at(0.0, 0.0);
            let slope = |up: PairLoss, down: PairLoss| (up.loss - down.loss) / (2.0 * STEP);
            for (got, expected) in [
                (here.d_chosen, slope(at(STEP, 0.0), at(-STEP, 0.0))),
                (here.d_rejected, slope(at(0.0, STEP), at(0.0, -STEP))),
            ] {
                let error = (got - expected).abs() / expected.abs().max(1e-3);
                assert!(error < 1e-5, "{objective:?} at {shift}: {got}, {expected}");
            }
        }
    }
}

#[test]
fn the_first_loss_is_known_where_the_policy_is_the_reference() {
    let same = PairLogprobs {
        policy_chosen: PAIR.reference_chosen,
        policy_rejected: PAIR.reference_rejected,
        ..PAIR
    };
    for (objective, _) in VECTORS {
        let Some(first) = objective.first_loss() else {
            assert!(!objective.needs_reference());
            continue;
        };
        let got = objective.loss(&same).loss;
        match objective {
            PreferenceObjective::Dpo { .. } | PreferenceObjective::LengthNormalisedDpo { .. } => {
                assert_eq!(got, std::f64::consts::LN_2, "{objective:?}");
            }
            _ => assert!((got - first).abs() < 1e-12, "{objective:?}: {got}"),
        }
    }
}

#[test]
fn the_smoothed_losses_relate_as_their_expectations_say() {
    // The robust loss, averaged over labels swapped with its own probability, is the plain loss.
    let swapped = PairLogprobs {
        policy_chosen: PAIR.policy_rejected,
        policy_rejected: PAIR.policy_chosen,
        reference_chosen: PAIR.reference_rejected,
        reference_rejected: PAIR.reference_chosen,
        n_chosen: PAIR.n_rejected,
        n_rejected: PAIR.n_chosen,
    };
    let (beta, e) = (0.4, 0.2);
    let noisy = (1.0 - e) * robust_dpo::loss(&PAIR, beta, e).loss
        + e * robust_dpo::loss(&swapped, beta, e).loss;
    assert!((noisy - dpo::loss(&PAIR, beta).loss).abs() < 1e-12);
    // The conservative one is that average of the plain loss itself.
    let smoothed = (1.0 - e) * dpo::loss(&PAIR, beta).loss + e * dpo::loss(&swapped, beta).loss;
    assert!((smoothed - conservative_dpo::loss(&PAIR, beta, e).loss).abs() < 1e-12);
}

#[test]
fn constants_that_make_another_objective_are_refused() {
    let text = |objective: PreferenceObjective| objective.check().unwrap_err().to_string();
    assert!(text(PreferenceObjective::Dpo { beta: 0.0 }).contains("beta is 0"));
    assert!(text(PreferenceObjective::Dpo { beta: f64::NAN }).contains("beta is NaN"));
    let smoothing = |label_smoothing| PreferenceObjective::RobustDpo {
        beta: 0.1,
        label_smoothing,
    };
    assert!(text(smoothing(0.0)).contains("plain dpo"));
    assert!(text(smoothing(0.5)).contains("not between"));
    let simpo = PreferenceObjective::Simpo {
        beta: 2.0,
        gamma: -1.0,
    };
    assert!(text(simpo).contains("gamma is -1"));
    let json = r#"{"dpo": {"beta": 0.1, "label_smoothing": 0.1}}"#;
    assert!(serde_json::from_str::<PreferenceObjective>(json).is_err());
}

#[test]
fn the_sigmoid_and_its_logarithm_hold_far_from_zero() {
    assert_eq!(softplus(0.0), std::f64::consts::LN_2);
    assert_eq!(sigmoid(0.0), 0.5);
    for x in [-800.0, -30.0, -1.0, 0.3, 30.0, 800.0] {
        let sum = sigmoid(x) + sigmoid(-x);
        assert!((sum - 1.0).abs() < 1e-15, "{x}: {sum}");
        assert!((softplus(x) - softplus(-x) - x).abs() < 1e-12, "{x}");
    }
    assert_eq!((softplus(-800.0), softplus(800.0)), (0.0, 800.0));
    assert!((softplus(-30.0) - (-30f64).exp()).abs() < 1e-25);
}
