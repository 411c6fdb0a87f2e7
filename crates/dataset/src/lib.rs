//! Trajectories as data: reading, auditing and building training rows.
//!
//! [`rows`] reads published data sets in bounded memory, [`audit`] says what is in them.

pub mod audit;
pub mod formats;
pub mod rows;
