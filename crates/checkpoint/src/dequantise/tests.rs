use half::bf16;

use super::*;
use crate::tensor::{DecodeError, TensorView};

/// Random blocks and what another implementation decodes them to; see the script beside them.
macro_rules! fixtures {
    ($($encoding:ident $name:literal),*) => {
        [$((
            Encoding::$encoding,
            include_bytes!(concat!("../../tests/fixtures/dequantise/", $name, ".blocks")).as_slice(),
            include_bytes!(concat!("../../tests/fixtures/dequantise/", $name, ".f32")).as_slice(),
        )),*]
    };
}

const BLOCKS: [(Encoding, &[u8], &[u8]); 10] = fixtures![
    Q4_0 "Q4_0", Q4_1 "Q4_1", Q5_0 "Q5_0", Q5_1 "Q5_1", Q8_0 "Q8_0",
    Q2K "Q2_K", Q3K "Q3_K", Q4K "Q4_K", Q5K "Q5_K", Q6K "Q6_K"
];

fn view(encoding: Encoding, shape: &[usize], bytes: &[u8]) -> TensorView<'static> {
    TensorView {
        name: "t".into(),
        shape: shape.to_vec(),
        encoding,
        bytes: bytes.to_vec().into(),
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn blocks_decode_to_the_bits_of_the_reference() {
    for (encoding, blocks, expected) in BLOCKS {
        let mut values = vec![0.0; expected.len() / 4];
        dequantise(encoding, blocks, &mut values);
        for (at, (value, expected)) in values.iter().zip(expected.chunks(4)).enumerate() {
            let expected = f32::from_le_bytes(expected.try_into().unwrap());
            assert_eq!(
                value.to_bits(),
                expected.to_bits(),
                "{encoding}[{at}]: {value} {expected}"
            );
        }
    }
}

#[test]
fn rows_and_bf16_agree_with_the_whole() {
    for (encoding, blocks, expected) in BLOCKS {
        let n = expected.len() / 4;
        let view = view(encoding, &[4, n / 4], blocks);
        let whole = view.to_f32().unwrap();
        let mut rows = vec![0.0; n / 2];
        view.to_f32_into(1..3, &mut rows).unwrap();
        assert_eq!(bits(&rows), bits(&whole[n / 4..3 * n / 4]), "{encoding}");
        let mut short = vec![bf16::ZERO; n / 2];
        view.to_bf16_into(1..3, &mut short).unwrap();
        let rounded: Vec<bf16> = rows.iter().map(|value| bf16::from_f32(*value)).collect();
        assert_eq!(short, rounded, "{encoding}");
    }
}

#[test]
fn plain_elements() {
    let values = [0.0f32, -1.5, 3.0e-5, 65504.0];
    let bytes = |encode: &dyn Fn(f32) -> Vec<u8>| -> Vec<u8> {
        values.iter().flat_map(|value| encode(*value)).collect()
    };
    let f32s = view(Encoding::F32, &[4], &bytes(&|v| v.to_le_bytes().into()));
    assert_eq!(f32s.to_f32().unwrap(), values);
    let f16s = view(
        Encoding::F16,
        &[2, 2],
        &bytes(&|v| f16::from_f32(v).to_le_bytes().into()),
    );
    let expected = values.map(|value| f16::from_f32(value).to_f32());
    assert_eq!(f16s.to_f32().unwrap(), expected);
    let bf16s = view(
        Encoding::Bf16,
        &[4],
        &bytes(&|v| bf16::from_f32(v).to_le_bytes().into()),
    );
    let rounded = values.map(bf16::from_f32);
    assert_eq!(bf16s.to_f32().unwrap(), rounded.map(bf16::to_f32));
    let mut out = [bf16::ZERO; 4];
    bf16s.to_bf16_into(0..1, &mut out).unwrap();
    assert_eq!(out, rounded);
}

#[test]
fn wrong_lengths_are_errors() {
    let short = view(Encoding::Q4_0, &[2, 32], &[0; 35]);
    assert!(matches!(
        short.to_f32(),
        Err(DecodeError::Length {
            expected: 36,
            got: 35,
            ..
        })
    ));
    let uneven = view(Encoding::Q4_0, &[1, 33], &[0; 18]);
    assert!(matches!(
        uneven.to_f32(),
        Err(DecodeError::Blocks { columns: 33, .. })
    ));
    let whole = view(Encoding::Q4_0, &[2, 32], &[0; 36]);
    let mut out = [0.0; 64];
    assert!(matches!(
        whole.to_f32_into(1..3, &mut out),
        Err(DecodeError::Rows { n_rows: 2, .. })
    ));
    assert!(matches!(
        whole.to_f32_into(0..1, &mut out),
        Err(DecodeError::Output {
            expected: 32,
            got: 64,
            ..
        })
    ));
    whole.to_f32_into(2..2, &mut []).unwrap();
}
