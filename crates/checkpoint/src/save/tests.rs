use super::*;
use crate::safetensors::{SafetensorsFile, Shards};

fn plan(shapes: &[&[usize]]) -> Vec<TensorPlan> {
    shapes
        .iter()
        .enumerate()
        .map(|(number, shape)| TensorPlan {
            name: format!("t{number}"),
            shape: shape.to_vec(),
        })
        .collect()
}

fn values(number: usize, n: usize) -> Vec<f32> {
    (0..n)
        .map(|at| (number * 1000 + at) as f32 * 0.37 - 5.0)
        .collect()
}

#[test]
fn weights_come_back_as_they_were_in_shards_of_bounded_size() {
    let plan = plan(&[&[3, 4], &[7], &[], &[50, 2], &[2, 3]]);
    for (max_shard_bytes, n_files) in [(u64::MAX, 1), (80, 3), (1, 5)] {
        let folder = tempfile::tempdir().unwrap();
        write_weights::<SaveError>(
            folder.path(),
            &plan,
            SaveDtype::F32,
            max_shard_bytes,
            |at, sink| {
                let values = values(at, plan[at].n_elements() as usize);
                // In two pieces, as rows come.
                let (first, second) = values.split_at(values.len() / 2);
                sink.write(first)?;
                sink.write(second)
            },
        )
        .unwrap();
        let shards = match n_files {
            1 => Shards::single(&folder.path().join(SINGLE_NAME)).unwrap(),
            _ => Shards::indexed(&folder.path().join(INDEX_NAME)).unwrap(),
        };
        assert_eq!(shards.files().len(), n_files);
        for (number, tensor) in plan.iter().enumerate() {
            let view = shards.tensor(&tensor.name).unwrap().unwrap();
            assert_eq!(view.shape, tensor.shape);
            let n = tensor.n_elements() as usize;
            assert_eq!(view.to_f32().unwrap(), values(number, n));
        }
    }
}

#[test]
fn bfloat16_is_rounded_to_nearest_even() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    // 1 + 1/256 lies in the middle and goes to the even neighbour 1; 1 + 3/256 goes to 1 + 4/256.
    let exact = [
        1.0 + 1.0 / 256.0,
        1.0 + 3.0 / 256.0,
        1.0 + 1.01 / 256.0,
        -0.0,
    ];
    write_file::<SaveError>(
        &path,
        &plan(&[&[4]]),
        SaveDtype::Bf16,
        &BTreeMap::new(),
        |_, sink| sink.write(&exact),
    )
    .unwrap();
    let file = SafetensorsFile::open(&path).unwrap();
    let stored = file.tensor("t0").unwrap().unwrap().to_f32().unwrap();
    assert_eq!(stored, [1.0, 1.0 + 4.0 / 256.0, 1.0 + 2.0 / 256.0, 0.0]);
    assert!(stored[3].is_sign_negative());
    // The data begin at a multiple of eight.
    let header = u64::from_le_bytes(fs::read(&path).unwrap()[..8].try_into().unwrap());
    assert_eq!(header % 8, 0);
}

#[test]
fn nothing_remains_of_what_failed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    let error = write_file::<SaveError>(
        &path,
        &plan(&[&[4]]),
        SaveDtype::F32,
        &BTreeMap::new(),
        |_, sink| sink.write(&[0.0; 3]),
    )
    .unwrap_err();
    assert!(matches!(
        error,
        SaveError::Length {
            expected: 4,
            got: 3,
            ..
        }
    ));
    let new = NewFolder::create(&folder.path().join("new")).unwrap();
    new.file("a", b"x").unwrap();
    drop(new);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_folder_appears_whole_and_never_over_another() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("deep/new");
    let new = NewFolder::create(&target).unwrap();
    new.file("a", b"x").unwrap();
    assert!(!target.exists());
    new.finish().unwrap();
    assert_eq!(fs::read(target.join("a")).unwrap(), b"x");
    assert!(matches!(
        NewFolder::create(&target),
        Err(SaveError::Exists { .. })
    ));
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    assert!(matches!(
        NewFolder::create(&file),
        Err(SaveError::Exists { .. })
    ));
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    NewFolder::create(&empty).unwrap().finish().unwrap();
}
