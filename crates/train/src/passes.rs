//! The passes that a window of rows takes through the model.

use temper_model::transformer::PackedBatch;

use crate::row::Row;

/// One batch for each row, or, packed, for as many rows as fit into `max_tokens`, in order.
///
/// There is no padding either way, and attention does not cross from one row into another, so
/// packing changes the number of passes and nothing that they sum up to.
pub fn passes<'a>(
    rows: impl IntoIterator<Item = &'a Row>,
    packing: bool,
    max_tokens: usize,
) -> Vec<PackedBatch> {
    let mut batches: Vec<PackedBatch> = Vec::new();
    for row in rows {
        match batches.last_mut() {
            Some(batch) if packing && batch.n_tokens() + row.n_tokens() <= max_tokens => {
                batch.push(row.ids(), &row.weights());
            }
            _ => {
                let mut batch = PackedBatch::new();
                batch.push(row.ids(), &row.weights());
                batches.push(batch);
            }
        }
    }
    batches
}
