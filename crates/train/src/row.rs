//! What is trained on: rows of token ids with a loss mask, and pairs of them.
//!
//! Rows come checked: a row that trains nothing is an error with its reason, never a row that is
//! skipped, and so is a pair whose two replies are the same.

use temper_core::{Digest, digest::Hasher};

/// A sequence of token ids and which of them are to be learned.
///
/// The prediction of token `t` counts where the mask of `t` is true. The first token of a sequence
/// is predicted from nothing, so its mask must be false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    ids: Vec<u32>,
    mask: Vec<bool>,
    n_supervised: usize,
}

/// Two replies to one prompt, one of which is better.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    chosen: Row,
    rejected: Row,
}

/// Why a row or a pair cannot be trained on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The mask is not one of the ids.
    #[error("take a row: {n_mask} mask entries for {n_ids} token ids")]
    Length {
        /// Token ids.
        n_ids: usize,
        /// Mask entries.
        n_mask: usize,
    },
    /// There is nothing to learn.
    #[error("take a row: none of its {n_ids} tokens is supervised")]
    NothingSupervised {
        /// Token ids.
        n_ids: usize,
    },
    /// The first token cannot be learned.
    #[error("take a row: its first token is supervised, and nothing stands before it")]
    FirstSupervised,
    /// A pair's replies do not differ where they are supervised.
    #[error(
        "take a pair: its replies have the same {n_ids} tokens and mask, so its gradients cancel"
    )]
    SameReplies {
        /// Token ids of each.
        n_ids: usize,
    },
}

impl Row {
    /// A row of `ids` and a mask for each.
    ///
    /// # Errors
    /// When there are not as many mask entries as ids, nothing is supervised, or the first is.
    pub fn new(ids: Vec<u32>, mask: Vec<bool>) -> Result<Self, RowError> {
        if ids.len() != mask.len() {
            return Err(RowError::Length {
                n_ids: ids.len(),
                n_mask: mask.len(),
            });
        }
        if mask.first() == Some(&true) {
            return Err(RowError::FirstSupervised);
        }
        let n_supervised = mask.iter().filter(|&&kept| kept).count();
        if n_supervised == 0 {
            return Err(RowError::NothingSupervised { n_ids: ids.len() });
        }
        Ok(Row {
            ids,
            mask,
            n_supervised,
        })
    }

    /// Token ids.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Which of them are learned.
    pub fn mask(&self) -> &[bool] {
        &self.mask
    }

    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.ids.len()
    }

    /// Number of tokens that are learned; at least 1.
    pub fn n_supervised(&self) -> usize {
        self.n_supervised
    }

    /// The mask as weights of a batch.
    pub fn weights(&self) -> Vec<f32> {
        self.mask
            .iter()
            .map(|&kept| f32::from(u8::from(kept)))
            .collect()
    }

    /// The hash of ids and mask.
    pub fn digest(&self) -> Digest {
        let mut hasher = Hasher::default();
        self.hash_into(&mut hasher);
        hasher.finish()
    }

    pub(crate) fn hash_into(&self, hasher: &mut Hasher) {
        let ids: Vec<u8> = self.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let mask: Vec<u8> = self.mask.iter().map(|&kept| u8::from(kept)).collect();
        hasher.field(&ids);
        hasher.field(&mask);
    }
}

impl Pair {
    /// A pair of the better and the worse reply, each with its prompt.
    ///
    /// # Errors
    /// When they are the same: the gradients would cancel.
    pub fn new(chosen: Row, rejected: Row) -> Result<Self, RowError> {
        if chosen == rejected {
            return Err(RowError::SameReplies {
                n_ids: chosen.n_tokens(),
            });
        }
        Ok(Pair { chosen, rejected })
    }

    /// The better reply.
    pub fn chosen(&self) -> &Row {
        &self.chosen
    }

    /// The worse reply.
    pub fn rejected(&self) -> &Row {
        &self.rejected
    }

    /// Tokens of both.
    pub fn n_tokens(&self) -> usize {
        self.chosen.n_tokens() + self.rejected.n_tokens()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_pairs_that_train_nothing_are_refused() {
        let row = |ids: &[u32], mask: &[bool]| Row::new(ids.to_vec(), mask.to_vec());
        assert_eq!(
            row(&[1, 2], &[false]),
            Err(RowError::Length {
                n_ids: 2,
                n_mask: 1
            })
        );
        for ids in [&[][..], &[1][..], &[1, 2][..]] {
            let n_ids = ids.len();
            let expected = Err(RowError::NothingSupervised { n_ids });
            assert_eq!(row(ids, &vec![false; n_ids]), expected);
        }
        let first = row(&[1, 2], &[true, true]);
        assert_eq!(first, Err(RowError::FirstSupervised));
        let good = row(&[1, 2, 3], &[false, true, false]).unwrap();
        assert_eq!((good.n_tokens(), good.n_supervised()), (3, 1));
        let same = Pair::new(good.clone(), good.clone());
        assert_eq!(same, Err(RowError::SameReplies { n_ids: 3 }));
        // The same ids under another mask are other replies.
        let longer = row(&[1, 2, 3], &[false, true, true]).unwrap();
        assert_ne!(good.digest(), longer.digest());
        assert_eq!(Pair::new(good, longer).unwrap().n_tokens(), 6);
    }
}
