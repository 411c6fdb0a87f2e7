//! Which of the found bugs are written when not all can be.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::{Found, MAX_PER_FILE, Options};

type Key = (usize, usize, u64, usize);

/// Takes one bug of each kind in turn, each time one from the function with the fewest bugs so
/// far, then the file with the fewest, then by the seed's chance, until the limits are reached. The
/// answer is ordered by file and place.
pub(super) fn select(bugs: Vec<(usize, Found)>, options: &Options) -> Vec<(usize, Found)> {
    let mut by_function: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    let mut by_file: BTreeMap<usize, usize> = BTreeMap::new();
    let mut queues: BTreeMap<usize, BinaryHeap<Reverse<Key>>> = BTreeMap::new();
    for (index, (_, bug)) in bugs.iter().enumerate() {
        let queue = queues.entry(bug.kind).or_default();
        queue.push(Reverse((0, 0, bug.priority, index)));
    }
    let max_per_function = options.max_per_function.unwrap_or(usize::MAX);
    let max_per_file = options.max_per_file.unwrap_or(usize::MAX).min(MAX_PER_FILE);
    let max_per_kind = options.max_per_kind.unwrap_or(usize::MAX);
    let max = options.max_candidates.unwrap_or(usize::MAX);
    let mut chosen = Vec::new();
    let mut round = 0;
    while round < max_per_kind && chosen.len() < max {
        let before = chosen.len();
        for queue in queues.values_mut() {
            if chosen.len() >= max {
                break;
            }
            while let Some(Reverse((in_function, in_file, priority, index))) = queue.pop() {
                let (file, bug) = &bugs[index];
                let function_count = by_function.entry((*file, bug.unit)).or_default();
                let file_count = by_file.entry(*file).or_default();
                if *function_count >= max_per_function || *file_count >= max_per_file {
                    continue;
                }
                // Counts only grow, so an entry with old counts goes back and waits its turn.
                if (*function_count, *file_count) != (in_function, in_file) {
                    queue.push(Reverse((*function_count, *file_count, priority, index)));
                    continue;
                }
                *function_count += 1;
                *file_count += 1;
                chosen.push(index);
                break;
            }
        }
        if chosen.len() == before {
            break;
        }
        round += 1;
    }
    let mut is_chosen = vec![false; bugs.len()];
    for index in chosen {
        is_chosen[index] = true;
    }
    let mut taken: Vec<(usize, Found)> = bugs
        .into_iter()
        .zip(is_chosen)
        .filter_map(|(bug, is_chosen)| is_chosen.then_some(bug))
        .collect();
    taken.sort_by(|(file_a, a), (file_b, b)| {
        (file_a, &a.edit, a.kind).cmp(&(file_b, &b.edit, b.kind))
    });
    taken
}
