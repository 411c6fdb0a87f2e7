//! Trajectories as data: auditing what others published, and building training rows from trials.
//!
//! [`audit`] says what is in a published set, which [`rows`] reads in bounded memory. [`build`]
//! turns judged trials ([`episode`]) into rows, pairs and groups: [`filter`] says which are kept and
//! why the others are not, [`sampled`] takes ids as they were sampled, [`render`] spells text by a
//! checkpoint's template, [`budget`] makes data sets equal in size, [`store`] writes the result with
//! a manifest, [`show`] shows a row token by token, and [`advantages`] says what a group's rewards
//! weigh. [`formats`] are the shapes that others read and write.

pub mod advantages;
pub mod audit;
pub mod budget;
pub mod build;
pub mod episode;
pub mod filter;
pub mod formats;
pub mod groups;
pub mod pairs;
pub mod render;
pub mod row;
pub mod rows;
pub mod sampled;
pub mod show;
pub mod store;
