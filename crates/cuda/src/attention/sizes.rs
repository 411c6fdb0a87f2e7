//! Tiles, threads and bytes of the kernels, which the kernels' own constants fix.

use super::{AttentionShape, Instructions};

/// Buffers of the warpgroup kernels' ring in the backward pass (`RING`).
const RING: usize = 3;

/// Query rows of a block of every tiled kernel, and key rows of the dK and dV kernel.
pub(super) const TILE: usize = 128;

/// Bytes of the row sums in front of the scratch, whole in 16.
pub(super) fn delta_bytes(shape: &AttentionShape) -> usize {
    (shape.tokens * shape.q_heads * size_of::<f32>()).next_multiple_of(16)
}

/// Tiles of `TILE` tokens that suffice however the tokens fall into sequences.
pub(super) fn n_tiles(shape: &AttentionShape) -> u32 {
    let tiles = shape.tokens.div_ceil(TILE) + shape.n_sequences.saturating_sub(1);
    u32::try_from(tiles).unwrap_or(u32::MAX)
}

pub(super) fn threads(instructions: Instructions, of_warps: u32) -> u32 {
    match instructions {
        Instructions::Warp => of_warps,
        Instructions::Warpgroup => 384,
    }
}

/// Bytes of dynamic shared memory, which the kernels lay out themselves; with the copy engine they
/// round the start up to 1,024.
pub(super) fn forward_shared(instructions: Instructions, row_bytes: usize) -> usize {
    match instructions {
        Instructions::Warp => (TILE + 2 * 64) * row_bytes,
        Instructions::Warpgroup => 1024 + 5 * TILE * row_bytes,
    }
}

pub(super) fn keys_shared(instructions: Instructions, head_dim: usize, stages: usize) -> usize {
    let row_bytes = head_dim * 2;
    match instructions {
        Instructions::Warp => 2 * TILE * row_bytes + stages * (2 * 64 * row_bytes + 2 * 64 * 4),
        Instructions::Warpgroup => 1024 + (2 * TILE + RING * 2 * 64) * row_bytes,
    }
}

pub(super) fn queries_shared(instructions: Instructions, head_dim: usize, stages: usize) -> usize {
    let row_bytes = head_dim * 2;
    match instructions {
        Instructions::Warp => (2 * TILE + stages * 2 * 64) * row_bytes,
        Instructions::Warpgroup => 1024 + (2 * TILE + RING * 2 * 64) * row_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(tokens: usize, n_sequences: usize) -> AttentionShape {
        AttentionShape {
            tokens,
            n_sequences,
            q_heads: 32,
            kv_heads: 8,
            head_dim: 128,
            scale: 0.1,
        }
    }

    #[test]
    fn the_grid_covers_every_cut_into_sequences() {
        for lengths in [
            &[1][..],
            &[129, 1, 127, 0, 128],
            &[1; 300],
            &[8192],
            &[130, 130, 130],
        ] {
            let tiles: usize = lengths
                .iter()
                .map(|&length: &usize| length.div_ceil(TILE))
                .sum();
            let n = n_tiles(&shape(lengths.iter().sum(), lengths.len())) as usize;
            assert!(
                tiles <= n && n < tiles + lengths.len(),
                "{lengths:?}: {tiles} in {n}"
            );
        }
    }

    #[test]
    fn shared_memory_fits_the_cards() {
        // What one block may have: 99 KiB on 8.6 and 8.9, 227 KiB on 9.0.
        let (small, hopper) = (99 * 1024, 227 * 1024);
        for head_dim in [64, 128] {
            assert!(forward_shared(Instructions::Warp, head_dim * 2) <= small);
            assert!(keys_shared(Instructions::Warp, head_dim, 1) <= small);
            assert!(queries_shared(Instructions::Warp, head_dim, 1) <= small);
            // The statistics and barriers of the kernels are beside it.
            assert!(forward_shared(Instructions::Warpgroup, head_dim * 2) + 4096 <= hopper);
            assert!(keys_shared(Instructions::Warpgroup, head_dim, 2) + 4096 <= hopper);
            assert!(queries_shared(Instructions::Warpgroup, head_dim, 2) + 4096 <= hopper);
        }
    }
}
