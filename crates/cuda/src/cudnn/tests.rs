//! What can be checked without a GPU; values and times are checked by the example
//! `attention_cudnn` on one.

use std::collections::BTreeSet;

use super::shape::IndexLayout;
use super::{AttentionShape, Cudnn, CudnnError, Packing, RowStrides};

const VERSION: u64 = 91900;

fn packed(sequences: usize, longest: usize) -> AttentionShape {
    AttentionShape {
        packing: Packing::Packed { sequences, longest },
        ..AttentionShape::single(512, 8, 2, 64)
    }
}

fn refusal(shape: &AttentionShape) -> String {
    match shape.check(VERSION) {
        Err(CudnnError::Shape { reason }) => reason,
        other => panic!("{shape:?} gave {other:?}"),
    }
}

#[test]
fn a_missing_library_names_the_places_and_a_wrong_description_is_refused() {
    let folder = std::path::PathBuf::from("/nonexistent/wheel/lib");
    // Where cuDNN is installed, the description is what fails.
    match Cudnn::for_described_device("{}", std::slice::from_ref(&folder)) {
        Err(CudnnError::NotFound { tried }) => {
            assert!(
                tried.contains("/nonexistent/wheel/lib/libcudnn.so.9"),
                "{tried}"
            );
        }
        Err(CudnnError::Call { status, .. }) => assert_ne!(status, 0),
        Err(CudnnError::TooOld { found, needed }) => assert!(found < needed),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("an empty description was taken"),
    }
}

#[test]
fn shapes_that_fit_are_taken() {
    let dense = AttentionShape::single(8192, 32, 8, 128);
    let fused = AttentionShape {
        strides: RowStrides::fused(32, 8, 128),
        ..dense
    };
    for shape in [dense, fused, packed(1, 512), packed(64, 1)] {
        shape.check(VERSION).unwrap();
    }
    assert_eq!(fused.strides.q, 48 * 128);
    assert_eq!(fused.strides.out, 32 * 128);
    assert_eq!(dense.lse_elements(), 32 * 8192);
}

#[test]
fn shapes_that_do_not_fit_are_refused_with_their_values() {
    let shape = AttentionShape::single(512, 8, 2, 64);
    let cases = [
        (AttentionShape::single(0, 8, 2, 64), "empty"),
        (AttentionShape::single(512, 8, 3, 64), "8 query heads"),
        (AttentionShape::single(512, 8, 2, 60), "head dimension 60"),
        (AttentionShape::single(512, 8, 2, 264), "head dimension 264"),
        (
            AttentionShape {
                strides: RowStrides {
                    k: 120,
                    ..shape.strides
                },
                ..shape
            },
            "stride 120 of k",
        ),
        (
            AttentionShape {
                strides: RowStrides {
                    dv: 132,
                    ..shape.strides
                },
                ..shape
            },
            "stride 132 of dv",
        ),
        (
            AttentionShape {
                tokens: usize::MAX / 4,
                ..shape
            },
            "exceed 16777216",
        ),
        (packed(4, 513), "up to 513 of 512"),
        (packed(0, 5), "0 sequences"),
    ];
    for (shape, words) in cases {
        let reason = refusal(&shape);
        assert!(reason.contains(words), "{reason}");
    }
}

#[test]
fn old_releases_are_not_given_lengths_they_read_past() {
    let shape = AttentionShape::single(500, 8, 2, 64);
    assert!(shape.check(91500).is_err());
    assert!(shape.check(91501).is_ok());
    let forward = AttentionShape {
        backward: false,
        ..shape
    };
    assert!(forward.check(91500).is_ok());
    assert!(packed(4, 100).check(91500).is_ok());
}

#[test]
fn an_index_holds_lengths_and_the_starts_in_elements() {
    let shape = packed(4, 200);
    let layout = IndexLayout::new(&shape, [512, 128, 512, 1].into_iter()).unwrap();
    let index = layout.fill(&[100, 7, 200]).unwrap();
    assert_eq!(index.len(), layout.bytes());

    let lengths: Vec<i32> = index[..16]
        .chunks_exact(4)
        .map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap()))
        .collect();
    assert_eq!(lengths, [100, 7, 200, 0]);

    let mut places = BTreeSet::new();
    for row in [512_usize, 128, 1] {
        let at = layout.table(row).unwrap();
        assert!(at.is_multiple_of(16) && at >= 16);
        assert!(places.insert(at));
        let starts: Vec<i64> = index[at..at + 40]
            .chunks_exact(8)
            .map(|bytes| i64::from_ne_bytes(bytes.try_into().unwrap()))
            .collect();
        let expected = [0, 100, 107, 307, 307].map(|start| (start * row) as i64);
        assert_eq!(starts, expected);
    }
    assert_eq!(layout.table(2), None);
}

#[test]
fn an_index_refuses_what_exceeds_the_plan() {
    let shape = packed(3, 200);
    let layout = IndexLayout::new(&shape, [1].into_iter()).unwrap();
    for lengths in [
        vec![1; 4],
        vec![201],
        vec![200, 200, 113],
        vec![usize::MAX, 1],
    ] {
        assert!(
            matches!(layout.fill(&lengths), Err(CudnnError::Shape { .. })),
            "{lengths:?}"
        );
    }
    assert!(layout.fill(&[200, 200, 112]).is_ok());
    assert!(layout.fill(&[]).is_ok());
    assert!(IndexLayout::new(&AttentionShape::single(5, 1, 1, 8), [1].into_iter()).is_none());
}
