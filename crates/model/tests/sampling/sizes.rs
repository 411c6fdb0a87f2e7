//! What a paged model takes, and what it refuses.

use temper_model::device::Device;

use super::*;
use temper_model_fixtures::fixture;

#[test]
fn the_plan_is_what_is_taken() {
    let fixture = fixture("qwen2");
    let model = model(&fixture);
    let before = model.device.memory_used().0;
    let paged = PagedModel::new(Arc::clone(&model), &OPTIONS).unwrap();
    let plan = *paged.plan();
    let taken = model.device.memory_used().0 - before;
    assert_eq!(plan.cache_bytes + plan.workspace_bytes, taken);
    assert_eq!(plan.weight_bytes, model.weight_bytes());
    assert_eq!((plan.n_pages, plan.n_tokens), (60, 59 * 16));
    let text = plan.to_string();
    assert!(
        text.contains("(60 pages, 944 tokens, 128 a sequence)"),
        "{text}"
    );
    drop(paged);
    assert_eq!(model.device.memory_used().0, before);
}

#[test]
fn sizes_are_derived_and_kept_to() {
    let fixture = fixture("qwen2");
    let model = model(&fixture);
    let paged = PagedModel::new(Arc::clone(&model), &PagedOptions::default()).unwrap();
    // All sequences at full length, and the page for padding.
    let options = *paged.options();
    assert_eq!((options.max_context, options.max_sequences), (128, 64));
    assert_eq!(options.n_pages, 64 * 8 + 1);
    let page_bytes = options.cache_bytes / options.n_pages;
    let bounded = PagedOptions {
        cache_bytes: 5 * page_bytes + 1,
        ..PagedOptions::default()
    };
    let paged = PagedModel::new(Arc::clone(&model), &bounded).unwrap();
    // A sequence cannot be longer than the cache.
    assert_eq!((paged.options().n_pages, paged.plan().max_context), (5, 64));
}

#[test]
fn sizes_that_do_not_fit_are_refused_with_their_numbers() {
    let fixture = fixture("qwen2");
    let model = model(&fixture);
    for (options, words) in [
        (
            PagedOptions {
                n_pages: 1,
                ..OPTIONS
            },
            "1 pages hold nothing",
        ),
        (
            PagedOptions {
                max_context: 129,
                ..OPTIONS
            },
            "a context of 129 tokens where the rotary table covers 128",
        ),
        (
            PagedOptions {
                max_rows: 23,
                ..OPTIONS
            },
            "23 rows of a step where 6 sequences take 24",
        ),
        (
            PagedOptions {
                max_logit_rows: 7,
                ..OPTIONS
            },
            "logits of 7 rows where 6 sequences take 8",
        ),
    ] {
        let error = PagedModel::new(Arc::clone(&model), &options).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    let options = PagedOptions {
        max_adapter_rank: 2,
        ..OPTIONS
    };
    let engine = engine(&model, options);
    let rank = fixture.adapter.rank;
    assert!(rank > 2);
    let error = engine.load_adapter("wide", fixture.adapter.clone());
    assert_eq!(
        error.unwrap_err().to_string(),
        format!(
            "load the adapter \"wide\": load an adapter: its rank is {rank}, room was made for 2"
        )
    );
    assert!(engine.adapters().is_empty());
}
